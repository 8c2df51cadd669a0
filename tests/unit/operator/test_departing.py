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
from espalier_operator.model import JobFacts, JobTerms, Node, Reclaim, Snapshot, Stopping, WorkerRole, WorkerState
from espalier_operator.model.actions import Admit, GrantExtra, NoticeReclaim, Replace, Requeue, Stop
from espalier_operator.planner import plan
from espalier_operator.policies.fair import FairPolicy
from operator_world import facts
from operator_world.facts import workers_of
from operator_world.kube_objects import kube_job, raw_node, raw_worker

NOW = 1000.0


def trains(key: str, extra: int = 0, **changes: Any) -> JobFacts:
    return facts.trains(key, 1, 1 + extra, extra=extra, **{"granted_at": None, "changed_at": None, **changes})


GOING = Node(name="going", gpu_type="a", allocatable=4, departing=4, schedulable=False)
NEW = Node(name="new", gpu_type="a", allocatable=1)


def test_extra_workers_get_notice_a_base_that_allows_it_moves_and_another_stays() -> None:
    jobs = (trains("ns/lent", extra=2), trains("ns/moves", base_preemptible=True))
    workers = tuple(worker for job in jobs for worker in workers_of(job, "going"))
    found = plan(Snapshot(taken_at=NOW, nodes=(GOING,), workers=workers, jobs=jobs), FairPolicy(), NOW)
    assert set(found.actions) == {
        NoticeReclaim(job="ns/lent", extra=0, deadline=NOW + 30.0, reason=Reason.GPU_LOST),
        Stop(job="ns/moves", reason=Reason.NODE_DEPARTING, deadline=NOW + 30.0),
    }


STAYS = Node(name="stays", gpu_type="a", allocatable=4)


def asked_to_leave(jobs: tuple[JobFacts, ...], *roles: WorkerRole) -> Snapshot:
    workers = (worker for job in jobs for worker in workers_of(job, "stays"))
    asked = tuple(replace(each, asked_to_leave=each.role in roles) for each in workers)
    return Snapshot(taken_at=NOW, nodes=(STAYS,), workers=asked, jobs=jobs)


def test_workers_that_are_asked_to_leave_do_so_with_notice() -> None:
    jobs = (trains("ns/lent", extra=2), trains("ns/moves", base_preemptible=True))
    found = plan(asked_to_leave(jobs, *WorkerRole), FairPolicy(), NOW)
    assert set(found.actions) == {
        NoticeReclaim(job="ns/lent", extra=0, deadline=NOW + 30.0, reason=Reason.EVICTION_REQUESTED),
        Stop(job="ns/moves", reason=Reason.EVICTION_REQUESTED, deadline=NOW + 30.0),
    }
    stopping = replace(
        jobs[1], leader_running=False, stopping=Stopping(reason=Reason.EVICTION_REQUESTED, deadline=NOW + 30)
    )
    again = plan(asked_to_leave((stopping,), WorkerRole.BASE), FairPolicy(), NOW)
    assert again.actions == (Requeue(job="ns/moves", reason=Reason.EVICTION_REQUESTED),), "it resumes later"
    seen = asked_to_leave(jobs, *WorkerRole)
    left = tuple(replace(each, state=WorkerState.TERMINATING) for each in seen.workers if each.job == "ns/moves")
    left += tuple(workers_of(jobs[1], "stays"))
    found = plan(replace(seen, workers=left, jobs=jobs[1:]), FairPolicy(), NOW)
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
    found = plan(replace(seen, workers=tuple(workers)), FairPolicy(), NOW)
    kept = [(type(action), action.extra) for action in found.actions if isinstance(action, NoticeReclaim)]
    assert kept == [(NoticeReclaim, 3 - asked)] * bool(asked)
    assert len(found.actions) == len(kept)


def test_one_with_extra_workers_there_moves_at_once_and_gets_no_notice_before() -> None:
    both = trains("ns/both", extra=1, base_preemptible=True)
    seen = Snapshot(taken_at=NOW, nodes=(GOING,), workers=tuple(workers_of(both, "going")), jobs=(both,))
    assert [type(action) for action in plan(seen, FairPolicy(), NOW).actions] == [Stop]
    stopping = replace(both, stopping=Stopping(reason=Reason.NODE_DEPARTING, deadline=NOW + 30))
    assert plan(replace(seen, jobs=(stopping,)), FairPolicy(), NOW).actions == ()
    ended = replace(stopping, leader_running=False)
    assert plan(replace(seen, jobs=(ended,)), FairPolicy(), NOW).actions[0].reason is Reason.NODE_DEPARTING


def test_one_that_moves_has_time_for_a_checkpoint_though_it_lacks_a_gpu() -> None:
    hurt = trains("ns/hurt", base_preemptible=True)
    hurt = replace(hurt, terms=replace(hurt.terms, min_replicas=2, max_replicas=2))
    seen = Snapshot(taken_at=NOW, nodes=(GOING,), workers=tuple(workers_of(hurt, "going")), jobs=(hurt,))
    assert [type(action) for action in plan(seen, FairPolicy(), NOW).actions] == [Stop]


def test_one_that_has_notice_already_moves_too() -> None:
    asked = Reclaim(extra=0, deadline=NOW + 20, reason=Reason.NEEDED_BY_OTHER_JOB)
    both = replace(trains("ns/both", extra=1, base_preemptible=True), reclaim=asked)
    seen = Snapshot(taken_at=NOW, nodes=(GOING,), workers=tuple(workers_of(both, "going")), jobs=(both,))
    assert [type(action) for action in plan(seen, FairPolicy(), NOW).actions] == [Stop]


def test_nothing_new_is_placed_there() -> None:
    job = JobFacts(
        key="ns/a", terms=JobTerms(min_replicas=1, max_replicas=4, time_budget_seconds=9.0), submitted_at=0.0
    )
    tolerated = replace(GOING, schedulable=True)
    found = plan(Snapshot(taken_at=NOW, nodes=(tolerated, NEW), jobs=(job,)), FairPolicy(), NOW)
    assert [action for action in found.actions if isinstance(action, Admit)]
    assert found.placements["ns/a"].base == {0: "new"}


@pytest.mark.parametrize(
    ("change", "departing"),
    [
        ({}, 0),
        ({"spec": {"unschedulable": True}}, 4),
        ({"spec": {"taints": [{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule", "value": "1"}]}}, 4),
        ({"spec": {"taints": [{"key": "aws-node-termination-handler/spot-itn", "effect": "PreferNoSchedule"}]}}, 4),
        ({"spec": {"taints": [{"key": "dedicated", "effect": "NoSchedule"}]}}, 0),
        (
            {
                "spec": {
                    "taints": [
                        {"key": "going", "value": "yes", "effect": effect} for effect in ("NoSchedule", "NoExecute")
                    ]
                }
            },
            4,
        ),
        (
            {"spec": {"taints": [{"key": "going", "value": value, "effect": "NoSchedule"} for value in ("yes", "no")]}},
            4,
        ),
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
    return replace(Node(name="n", gpu_type="a", allocatable=gpus, fell=((NOW - ago, 4),)), **change)


def lent_on(node: Node) -> Snapshot:
    job = trains("ns/lent", extra=2)
    return Snapshot(taken_at=NOW, nodes=(node,), workers=tuple(workers_of(job, "n")), jobs=(job,))


def test_a_device_plugin_that_restarts_takes_nothing_and_gpus_that_stay_away_for_a_minute_are_lost() -> None:
    found = plan(lent_on(restarting()), FairPolicy(), NOW)
    assert (found.actions, found.wake_at) == ((), NOW + 55.0)
    assert plan(lent_on(restarting()), FairPolicy(), NOW + 55.0).actions == (
        NoticeReclaim(job="ns/lent", extra=0, deadline=NOW + 85.0, reason=Reason.GPU_LOST),
    )


def test_gpus_that_were_lost_before_a_dip_are_lost() -> None:
    node = restarting(fell=((NOW - 5.0, 2),))
    found = plan(lent_on(node), FairPolicy(), NOW)
    assert [action.extra for action in found.actions if isinstance(action, NoticeReclaim)] == [1]


def test_a_node_that_is_about_to_go_is_left_at_once_whatever_its_gpus_do() -> None:
    found = plan(lent_on(restarting(departing=1, schedulable=False)), FairPolicy(), NOW)
    assert [type(action) for action in found.actions] == [NoticeReclaim]


def test_a_worker_that_is_to_be_made_again_waits_for_gpus_that_may_return() -> None:
    """The others of its job run on: the whole job would wait again."""
    job = replace(trains("ns/a"), leader_running=False, training=False)
    job = replace(job, terms=replace(job.terms, min_replicas=2, max_replicas=2))
    other = replace(workers_of(job, "n")[0], index=1)
    seen = Snapshot(taken_at=NOW, nodes=(restarting(),), workers=(other,), jobs=(job,))
    assert plan(seen, FairPolicy(), NOW).actions == ()
    assert [type(action) for action in plan(seen, FairPolicy(), NOW + 60.0).actions] == [Requeue]


def test_a_worker_whose_node_others_have_filled_does_not_wait_there_for_gpus_that_may_return_elsewhere() -> None:
    """It is not made again before they do; if others hold them, there are none to wait for."""
    job = replace(trains("ns/a"), leader_running=False, training=False)
    waits = replace(workers_of(job, "full")[0], node=None, pinned_to="full", state=WorkerState.PENDING)
    taken, held = (replace(waits, name=name, job=None, role=WorkerRole.FOREIGN, pinned_to=None) for name in ("x", "y"))
    nodes = restarting(), Node(name="full", gpu_type="a", allocatable=1)
    seen = Snapshot(taken_at=NOW, nodes=nodes, workers=(waits, replace(taken, node="full")), jobs=(job,))
    found = plan(seen, FairPolicy(), NOW)
    assert found.actions == (Replace(job="ns/a", workers=(0,), pinned=True, reason=Reason.GPU_LOST),)
    assert not found.placements
    in_use = replace(seen, workers=(*seen.workers, replace(held, node="n", gpus=4)))
    assert [type(action) for action in plan(in_use, FairPolicy(), NOW).actions] == [Requeue]


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
        node = Node(name="n", gpu_type="a", allocatable=3)
        seen = Snapshot(taken_at=NOW, nodes=(node,), workers=tuple(workers), jobs=tuple(jobs))
        assert [action.job for action in plan(seen, FairPolicy(), NOW).actions] == [broken.key]


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
    job = replace(trains("ns/one"), terms=JobTerms(min_replicas=1, max_replicas=3, time_budget_seconds=500.0))
    waits = JobFacts(key="ns/new", terms=replace(job.terms, max_replicas=1), submitted_at=1.0)
    seen = Snapshot(taken_at=NOW, nodes=(NEW, idle), workers=tuple(workers_of(job, "new")), jobs=(job,))
    assert plan(seen, FairPolicy(), NOW).actions == ()
    (started,) = plan(replace(seen, jobs=(job, waits)), FairPolicy(), NOW).actions
    assert started == Admit(job="ns/new", gpu_type="a")
    needed = plan(replace(seen, nodes=(NEW, replace(idle, unneeded=False))), FairPolicy(), NOW)
    assert needed.actions == (GrantExtra(job="ns/one", extra=2),)
