"""Nodes that are about to go, in the planner: what moves, what stays, and by what they are known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from espalier_api.reasons import Reason
from espalier_operator.actions import Admit, NoticeReclaim, Stop
from espalier_operator.facts import JobFacts, Node, Reclaim, Role, Snapshot, Stopping, Terms, Worker, WorkerState
from espalier_operator.kube.objects.gpus import label_of, nodes_of, resource_of_type, type_of
from espalier_operator.kube.objects.nodes import parse_node
from espalier_operator.kube.settings import DEPARTING, KubeSettings
from espalier_operator.plan import plan
from espalier_operator.policies.fair import FairPolicy
from operator_world.kube_objects import raw_node

NOW = 1000.0


def trains(key: str, extra: int = 0, **terms: Any) -> JobFacts:
    asked = Terms(min_replicas=1, max_replicas=1 + extra, time_budget_seconds=500.0, **terms)
    running = {"leader_running": True, "has_reported": True, "training": True, "trained": True, "gpu_type": "a"}
    return JobFacts(key=key, terms=asked, submitted_at=0.0, admitted_at=0.0, generation=1, extra=extra, **running)


def workers_of(job: JobFacts, node: str) -> list[Worker]:
    roles = [(Role.BASE, 0), *((Role.EXTRA, index) for index in range(job.extra))]
    return [
        Worker(
            name=f"{job.key}-{role}-{index}",
            job=job.key,
            role=role,
            index=index,
            node=node,
            gpus=1,
            state=WorkerState.RUNNING,
        )
        for role, index in roles
    ]


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


def test_one_with_extra_workers_there_moves_at_once_and_gets_no_notice_before() -> None:
    both = trains("ns/both", extra=1, base_preemptible=True)
    seen = Snapshot(taken_at=NOW, nodes=(GOING,), workers=tuple(workers_of(both, "going")), jobs=(both,))
    assert [type(action) for action in plan(seen, FairPolicy(), NOW).actions] == [Stop]
    stopping = replace(both, stopping=Stopping(reason=Reason.NODE_DEPARTING, deadline=NOW + 30))
    assert plan(replace(seen, jobs=(stopping,)), FairPolicy(), NOW).actions == ()
    ended = replace(stopping, leader_running=False)
    assert plan(replace(seen, jobs=(ended,)), FairPolicy(), NOW).actions[0].reason is Reason.NODE_DEPARTING


def test_one_that_has_notice_already_moves_too() -> None:
    asked = Reclaim(extra=0, deadline=NOW + 20, reason=Reason.NEEDED_BY_OTHER_JOB)
    both = replace(trains("ns/both", extra=1, base_preemptible=True), reclaim=asked)
    seen = Snapshot(taken_at=NOW, nodes=(GOING,), workers=tuple(workers_of(both, "going")), jobs=(both,))
    assert [type(action) for action in plan(seen, FairPolicy(), NOW).actions] == [Stop]


def test_nothing_new_is_placed_there() -> None:
    job = JobFacts(key="ns/a", terms=Terms(min_replicas=1, max_replicas=4, time_budget_seconds=9.0), submitted_at=0.0)
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
