"""Resources that only some nodes have, such as network cards: others have none, though they do not say so."""

from __future__ import annotations

import pytest

from espalier_core.types.reasons import Reason
from espalier_operator.model import JobFacts, JobTerms, Node, Snapshot
from espalier_operator.model.actions import Admit, Plan
from espalier_operator.model.constraints import Constraints
from espalier_operator.planner import plan
from espalier_operator.policies.fair import FairPolicy

CARD = "rdma/hca"


def node(name: str, gpus: int, **special: int) -> Node:
    resources = {"cpu": 64_000, "pods": 110, **{key.replace("_", "/"): amount for key, amount in special.items()}}
    return Node(name=name, gpu_type="a", allocatable=gpus, resources=resources)


def planned(*nodes: Node, workers: int = 1) -> Plan:
    requests = (("cpu", 1_000), ("pods", 1), (CARD, 1))
    terms = JobTerms(
        min_replicas=workers,
        max_replicas=workers,
        time_budget_seconds=100.0,
        constraints=Constraints(requests=requests),
    )
    job = JobFacts(key="ns/job", terms=terms, submitted_at=0.0)
    return plan(Snapshot(taken_at=1.0, nodes=nodes, jobs=(job,)), FairPolicy(), 1.0)


def test_a_worker_goes_to_the_node_that_has_what_it_requests() -> None:
    found = planned(node("plain", 1), node("cards", 8, rdma_hca=4))
    assert found.placements["ns/job"].base == {0: "cards"}


@pytest.mark.parametrize(("cards", "reason"), [(2, Reason.UNSCHEDULABLE), (4, None)])
def test_a_job_is_not_admitted_on_nodes_without_it(cards: int, reason: Reason | None) -> None:
    """The GPUs of the plain node would be kept for it in vain."""
    found = planned(node("plain", 8), node("cards", 8, rdma_hca=cards), workers=4)
    assert [type(action) for action in found.actions] == ([] if reason else [Admit])
    assert found.refusals.get("ns/job") is None or found.refusals["ns/job"].reason is reason


def test_what_no_node_names_is_left_to_kube_scheduler() -> None:
    assert planned(node("plain", 1)).actions == (Admit(job="ns/job", gpu_type="a"),)


def test_a_node_of_which_no_resource_is_known_is_not_limited() -> None:
    """Local machines do not say what they have."""
    found = planned(Node(name="local", gpu_type="a", allocatable=1), node("cards", 0, rdma_hca=1))
    assert found.actions == (Admit(job="ns/job", gpu_type="a"),)
