"""Nodes that are about to go, and GPUs that have gone: what moves, what stays, and by what they are known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier_core.k8s.resources import NODES
from espalier_core.types.reasons import Reason
from espalier_operator.job.state import JobState
from espalier_operator.kube.objects.nodes import label_of, nodes_of, parse_node, resource_of_type, type_of
from espalier_operator.kube.objects.pods import Pod, parse_pod
from espalier_operator.kube.settings import DEPARTING, KubeSettings
from espalier_operator.kube.state.workers import sort_pods
from espalier_operator.kube.state.workers import workers_of as workers_of_pods
from espalier_operator.kube.watch.store import Store
from espalier_operator.model import JobFacts, Node, Reclaim, Snapshot, Stopping, WorkerRole, WorkerState
from espalier_operator.model.actions import GrantExtra, NoticeReclaim, Replace, Requeue, Stop
from espalier_operator.planner import plan
from operator_world import facts
from operator_world.facts import (
    FAIR,
    NOW,
    decide,
    foreign,
    kinds,
    node,
    running_on,
    starts,
    workers_of,
    world,
)
from operator_world.kube_objects import kube_job, raw_node, raw_worker


def trains(key: str, extra: int = 0, **changes: Any) -> JobFacts:
    return facts.trains(key, 1, 1 + extra, extra=extra, **{"granted_at": None, "changed_at": None, **changes})


GOING, NEW, STAYS = node("going", 4, departing=4, schedulable=False), node("new"), node("stays", 4)


def test_extra_workers_get_notice_a_base_that_allows_it_moves_and_another_stays() -> None:
    jobs = (trains("ns/lent", extra=2), trains("ns/moves", base_preemptible=True))
    found = decide(GOING, running_on("going", *jobs))
    assert set(found.actions) == {
        NoticeReclaim(job="ns/lent", extra=0, deadline=NOW + 30.0, reason=Reason.GPU_LOST),
        Stop(job="ns/moves", reason=Reason.NODE_DEPARTING, deadline=NOW + 30.0),
    }


def asked_to_leave(jobs: tuple[JobFacts, ...], *roles: WorkerRole) -> Snapshot:
    workers = (worker for job in jobs for worker in workers_of(job, "stays"))
    return world(STAYS, jobs, [replace(each, asked_to_leave=each.role in roles) for each in workers])


def test_workers_that_are_asked_to_leave_do_so_with_notice() -> None:
    jobs = (trains("ns/lent", extra=2), trains("ns/moves", base_preemptible=True))
    found = plan(asked_to_leave(jobs, *WorkerRole), FAIR, NOW)
    assert set(found.actions) == {
        NoticeReclaim(job="ns/lent", extra=0, deadline=NOW + 30.0, reason=Reason.EVICTION_REQUESTED),
        Stop(job="ns/moves", reason=Reason.EVICTION_REQUESTED, deadline=NOW + 30.0),
    }
    stopping = Stopping(reason=Reason.EVICTION_REQUESTED, deadline=NOW + 30)
    stops = replace(jobs[1], leader_running=False, stopping=stopping)
    again = plan(asked_to_leave((stops,), WorkerRole.BASE), FAIR, NOW)
    assert again.actions == (Requeue(job="ns/moves", reason=Reason.EVICTION_REQUESTED),), "it resumes later"
    seen = asked_to_leave(jobs, *WorkerRole)
    left = tuple(replace(each, state=WorkerState.TERMINATING) for each in seen.workers if each.job == "ns/moves")
    left += tuple(workers_of(jobs[1], "stays"))
    found = decide(STAYS, jobs[1:], left)
    assert found.actions == (), "the worker that was asked is on its way; the next one is not asked"


@given(asked=st.integers(0, 3), base=st.booleans())
def test_as_many_extra_workers_are_given_back_as_are_asked_and_a_base_that_does_not_allow_it_stays(
    asked: int, base: bool
) -> None:
    """Those that are asked are the last in the order in which extra workers are kept."""
    seen = asked_to_leave((trains("ns/lent", extra=3),), *[WorkerRole.BASE] * base)
    workers = (
        replace(each, asked_to_leave=True) if each.role is WorkerRole.EXTRA and each.index >= 3 - asked else each
        for each in seen.workers
    )
    found = plan(replace(seen, workers=tuple(workers)), FAIR, NOW)
    kept = [(type(action), action.extra) for action in found.actions if isinstance(action, NoticeReclaim)]
    assert kept == [(NoticeReclaim, 3 - asked)] * bool(asked)
    assert len(found.actions) == len(kept)


BOTH = trains("ns/both", extra=1, base_preemptible=True)


@pytest.mark.parametrize(
    "moves",
    [
        BOTH,
        replace(BOTH, reclaim=Reclaim(extra=0, deadline=NOW + 20, reason=Reason.NEEDED_BY_OTHER_JOB)),
        facts.trains("ns/hurt", 2, base_preemptible=True),
    ],
    ids=["with extra workers there", "that has notice already", "that lacks a GPU"],
)
def test_one_moves_at_once_with_time_for_a_checkpoint(moves: JobFacts) -> None:
    """And gets no notice before."""
    workers = workers_of(moves, "going")
    assert kinds(decide(GOING, moves, workers[: 1 + moves.extra])) == [Stop]
    stopping = replace(moves, stopping=Stopping(reason=Reason.NODE_DEPARTING, deadline=NOW + 30))
    assert decide(GOING, stopping, workers).actions == ()
    (requeue,) = decide(GOING, replace(stopping, leader_running=False), workers).actions
    assert requeue.reason is Reason.NODE_DEPARTING


def taint(key: str, effect: str = "NoSchedule", value: str = "") -> dict[str, str]:
    return {"key": key, "effect": effect, "value": value}


@pytest.mark.parametrize(
    ("change", "departing"),
    [
        ({}, 0),
        ({"spec": {"unschedulable": True}}, 4),
        ({"spec": {"taints": [taint("ToBeDeletedByClusterAutoscaler", value="1")]}}, 4),
        ({"spec": {"taints": [taint("aws-node-termination-handler/spot-itn", "PreferNoSchedule")]}}, 4),
        ({"spec": {"taints": [taint("dedicated")]}}, 0),
        ({"spec": {"taints": [taint("going", effect, "yes") for effect in ("NoSchedule", "NoExecute")]}}, 4),
        ({"spec": {"taints": [taint("going", value=value) for value in ("yes", "no")]}}, 4),
        ({"metadata": {"labels": {"cloud.google.com/active-node-maintenance": "ONGOING"}}}, 4),
        ({"metadata": {"labels": {"cloud.google.com/active-node-maintenance": "PENDING"}}}, 0),
        ({"conditions": [{"type": "PreemptScheduled", "status": "True"}]}, 4),
        ({"conditions": [{"type": "PreemptScheduled", "status": "False"}]}, 0),
    ],
)
def test_taints_labels_and_conditions_say_that_a_node_is_about_to_go(change: dict[str, Any], departing: int) -> None:
    raw = raw_node("n", 4)
    raw["spec"] = {**raw.get("spec", {}), **change.get("spec", {})}
    raw["metadata"] = {**raw["metadata"], **change.get("metadata", {})}
    raw["status"]["conditions"] = [*raw["status"]["conditions"], *change.get("conditions", [])]
    assert parse_node(raw, KubeSettings(departing_nodes=(*DEPARTING, "going=yes"))).departing == departing
    assert parse_node(raw, KubeSettings(departing_nodes=("none",))).departing == 0


def test_a_node_is_about_to_go_though_all_its_gpus_have_failed() -> None:
    """Jobs that allow it leave it: their workers may hold these GPUs."""
    raw = raw_node("n", 0)
    raw["spec"] = {"unschedulable": True}
    node = parse_node(raw, KubeSettings())
    assert (node.is_leaving, node.offered) == (True, 0)


def test_a_machine_with_other_gpus_only_is_departing_too() -> None:
    raw = raw_node("n", 0)
    raw["status"]["allocatable"] = {"amd.com/gpu": "2"}
    raw["spec"] = {"unschedulable": True}
    settings = KubeSettings(other_gpu_resources=("amd.com/gpu", "nvidia.com/mig-1g.5gb"))
    found = {node.name: (node.allocatable, node.departing) for node in nodes_of(parse_node(raw, settings), settings)}
    assert found == {"n": (0, 1), "n/amd.com/gpu": (2, 2)}


@pytest.mark.parametrize("label", ["", "MI300X", "NVIDIA-A100-SXM4-40GB"])
@pytest.mark.parametrize("resource", ["nvidia.com/gpu", "amd.com/gpu", "nvidia.com/mig-1g.5gb"])
def test_a_type_names_its_resource_and_its_label(resource: str, label: str) -> None:
    settings = KubeSettings(other_gpu_resources=("amd.com/gpu", "nvidia.com/mig-1g.5gb"))
    gpu_type = type_of(label, resource, settings)
    assert (resource_of_type(gpu_type, settings), label_of(gpu_type)) == (resource, label)


# ---- GPUs that vanish without a sign


def restarting(gpus: int = 0, ago: float = 5.0, **change: Any) -> Node:
    """Return a node that had four GPUs until its device plugin ended."""
    return node("n", gpus, **{"fell": ((NOW - ago, 4),), **change})


LENT = running_on("n", trains("ns/lent", extra=2))


def test_a_device_plugin_that_restarts_takes_nothing_and_gpus_that_stay_away_for_a_minute_are_lost() -> None:
    found = decide(restarting(), LENT)
    assert (found.actions, found.wake_at) == ((), NOW + 55.0)
    assert decide(restarting(), LENT, now=NOW + 55.0).actions == (
        NoticeReclaim(job="ns/lent", extra=0, deadline=NOW + 85.0, reason=Reason.GPU_LOST),
    )


def test_gpus_that_were_lost_before_a_dip_are_lost() -> None:
    found = decide(restarting(fell=((NOW - 5.0, 2),)), LENT)
    assert [action.extra for action in found.actions if isinstance(action, NoticeReclaim)] == [1]


def test_a_node_that_is_about_to_go_is_left_at_once_whatever_its_gpus_do() -> None:
    assert kinds(decide(restarting(departing=1, schedulable=False), LENT)) == [NoticeReclaim]


def test_a_worker_that_is_to_be_made_again_waits_for_gpus_that_may_return() -> None:
    """The others of its job run on: the whole job would wait again."""
    job = facts.trains("ns/a", 2, leader_running=False, training=False)
    other = workers_of(job, "n")[1]
    assert decide(restarting(), job, other).actions == ()
    assert kinds(decide(restarting(), job, other, now=NOW + 60.0)) == [Requeue]


def test_a_worker_whose_node_others_have_filled_does_not_wait_there_for_gpus_that_may_return_elsewhere() -> None:
    """It is not made again before they do; if others hold them, there are none to wait for."""
    job, waits = trains("ns/a", leader_running=False, training=False), facts.worker("ns/a", pinned_to="full")
    given = restarting(), node("full"), job, waits, foreign(1, "full")
    found = decide(*given)
    assert found.actions == (Replace(job="ns/a", workers=(0,), pinned=True, reason=Reason.GPU_LOST),)
    assert not found.placements
    assert kinds(decide(*given, foreign(4, "n"))) == [Requeue]


@given(st.lists(st.tuples(st.floats(0.0, 50.0), st.integers(0, 4)), max_size=8))
def test_a_store_knows_what_a_node_had_within_a_minute(steps: list[tuple[float, int]]) -> None:
    clock = [0.0]
    store = Store(KubeSettings(), lambda: clock[0])
    had = [(0.0, 4)]
    for version, (seconds, gpus) in enumerate([(0.0, 4), *steps], 1):
        clock[0] += seconds
        raw = raw_node("n", gpus)
        raw["metadata"]["resourceVersion"] = str(version)
        store.take(NODES, None, raw)
        had.append((clock[0], gpus))
    ends = [*(at for at, _ in had[1:]), clock[0]]
    most = max(gpus for (_, gpus), end in zip(had, ends, strict=True) if end > clock[0] - 60.0 or end == clock[0])
    node = store.planned_nodes["n"]
    assert node.allocatable + node.missing(clock[0] - 60.0) == most


def test_an_operator_that_starts_counts_devices_that_are_not_healthy_as_just_lost() -> None:
    raw = raw_node("n", 1)
    raw["metadata"]["resourceVersion"] = "1"
    raw["status"]["allocatable"]["nvidia.com/mig-1g.5gb"] = "2"
    raw["status"]["capacity"] = {**raw["status"]["allocatable"], "nvidia.com/gpu": "4", "nvidia.com/mig-1g.5gb": "3"}
    store = Store(KubeSettings(other_gpu_resources=("nvidia.com/mig-1g.5gb",)), lambda: NOW)
    store.take(NODES, None, raw)
    assert {node.name: node.missing(NOW - 60.0) for node in store.planned_nodes.values()} == {
        "n": 3,
        "n/nvidia.com/mig-1g.5gb": 1,
    }


def test_all_devices_of_another_resource_may_be_away() -> None:
    settings = KubeSettings(other_gpu_resources=("amd.com/gpu",))
    store = Store(settings, lambda: NOW)
    for version, amounts in enumerate(({"amd.com/gpu": "2"}, {}), 1):
        raw = raw_node("n", 0)
        raw["metadata"]["resourceVersion"] = str(version)
        raw["status"]["allocatable"] = amounts
        store.take(NODES, None, raw)
    node = store.planned_nodes["n/amd.com/gpu"]
    assert (node.allocatable, node.missing(NOW - 60.0)) == (0, 2)


def test_the_worker_whose_gpu_has_failed_goes_first() -> None:
    """Whatever the policy's order: the others can use theirs."""
    jobs = [trains("ns/a", extra=1), trains("ns/b", extra=1)]
    for broken in jobs:
        workers = [
            replace(worker, broken=worker.job == broken.key and worker.role is WorkerRole.EXTRA)
            for job in jobs
            for worker in workers_of(job, "n")
        ]
        assert [action.job for action in decide(node("n", 3), jobs, workers).actions] == [broken.key]


def test_the_kubelet_tells_which_pod_has_a_gpu_that_has_failed() -> None:
    job = kube_job("one", {"maxReplicas": 3})

    def pod(index: int, health: str) -> Pod:
        raw = raw_worker(job, index, 1, role=WorkerRole.EXTRA)
        resources = [{"resourceID": f"gpu-{index}", "health": health}]
        raw["status"]["containerStatuses"][0]["allocatedResourcesStatus"] = [
            {"name": "nvidia.com/gpu", "resources": resources}
        ]
        return parse_pod(raw, KubeSettings())

    pods = [pod(0, "Unhealthy"), pod(1, "Healthy"), pod(2, "Unknown")]
    state = JobState(attempts=(0,), incarnations=("",), extra=3)
    kept = sort_pods(job, state, pods)
    found = [(worker.name[-3:], worker.broken) for worker in workers_of_pods("ns/one", kept, state)]
    assert found == [("1-1", False), ("2-1", False), ("0-1", True)]


def test_nothing_is_lent_on_a_node_that_an_autoscaler_finds_unneeded_and_base_workers_start_there() -> None:
    raw = raw_node("idle", 2, "a")
    taint = {"key": "DeletionCandidateOfClusterAutoscaler", "value": "1", "effect": "PreferNoSchedule"}
    idle = parse_node({**raw, "spec": {"taints": [taint]}}, KubeSettings())
    assert (idle.unneeded, idle.is_leaving, parse_node(raw, KubeSettings()).unneeded) == (True, False, False)
    given = NEW, running_on("new", facts.trains("ns/one", 1, 3))
    assert decide(*given, idle).actions == ()
    assert decide(*given, idle, facts.job("ns/new", 1, at=1.0)).actions == starts("ns/new")
    needed = decide(*given, replace(idle, unneeded=False))
    assert needed.actions == (GrantExtra(job="ns/one", extra=2),)
