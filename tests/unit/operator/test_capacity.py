"""What the planner counts: nodes, resources other than GPUs, placements that failed, and pods of others."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier_core.types.reasons import Reason
from espalier_operator.cluster import node_index as node_pools
from espalier_operator.cluster.node_index import NodeIndex, NodePool, node_index_of
from espalier_operator.model import Node, Worker
from espalier_operator.model.actions import Admit, Plan
from espalier_operator.model.constraints import ANYWHERE, Constraints, NodeSelectorRequirement, NodeSelectorTerm, Taint
from espalier_operator.planner import plan
from espalier_operator.planner.placement import served
from espalier_operator.planner.starting import Attempt, FailedPlacements
from espalier_operator.policies.fair import FairPolicy
from operator_world import facts
from operator_world.crowds import NOW, crowd

NODE = Node(name="a", gpu_type="x", allocatable=8, labels={"zone": "1"}, resources={"cpu": 4}, used={"cpu": 1})
OTHER = replace(NODE, name="b")
IN_ZONE = Constraints(node_selector=(("zone", "1"),))


@pytest.fixture
def node_index() -> NodeIndex:
    return node_index_of((NODE, OTHER), (ANYWHERE, IN_ZONE), "rack")


@pytest.mark.parametrize("same", [{}, {"used": {}}, {"resources": {}}, {"silent_since": 1.0}, {"departs_at": 1.0}])
def test_what_pods_use_makes_no_other_fleet(node_index: NodeIndex, same: dict[str, object]) -> None:
    nodes = (NODE, replace(OTHER, **same))
    assert node_index_of(nodes, (IN_ZONE, replace(IN_ZONE, requests=(("cpu", 1),))), "rack") is node_index


@pytest.mark.parametrize(
    "other",
    [
        {"name": "c"},
        {"gpu_type": "y"},
        {"allocatable": 4},
        {"ready": False},
        {"schedulable": False},
        {"labels": {"zone": "2"}},
        {"taints": (Taint("t"),)},
        {"departing": 1},
    ],
)
def test_other_nodes_make_another_fleet(node_index: NodeIndex, other: dict[str, object]) -> None:
    nodes = (NODE, replace(OTHER, **other))
    assert node_index_of(nodes, (ANYWHERE, IN_ZONE), "rack") is not node_index


def test_what_is_asked_makes_another_fleet(node_index: NodeIndex) -> None:
    nodes = NODE, OTHER
    for asked in ((ANYWHERE,), (IN_ZONE, Constraints(node_selector=(("zone", "2"),)))):
        assert node_index_of(nodes, asked, "rack") is not node_index
    assert node_index_of(nodes, (IN_ZONE,), None) is not node_index
    assert node_index_of(nodes[:1], (IN_ZONE,), "rack") is not node_index
    assert node_index_of(nodes[::-1], (IN_ZONE,), "rack") is not node_index


def test_a_plan_does_not_depend_on_the_plans_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the sites are forgotten that earlier plans have asked for."""
    snapshots = []
    for seed in range(4):
        one = crowd(seed, nodes=20, jobs=20)
        *rest, last = one.nodes
        others = replace(last, used={"cpu": 1}), replace(last, ready=False)
        snapshots += [one, *(replace(one, nodes=(*rest, other)) for other in others)]
    plans = [plan(each, FairPolicy(), NOW) for each in snapshots]
    monkeypatch.setattr(node_pools, "_MOST_KNOWN", 0)
    for wanted, each in reversed(list(zip(plans, snapshots, strict=True))):
        assert plan(each, FairPolicy(), NOW) == wanted


CARD = "rdma/hca"


def node(name: str, gpus: int, **special: int) -> Node:
    resources = {"cpu": 64_000, "pods": 110, **{key.replace("_", "/"): amount for key, amount in special.items()}}
    return Node(name=name, gpu_type="a", allocatable=gpus, resources=resources)


def planned(*nodes: Node, workers: int = 1) -> Plan:
    asks = Constraints(requests=(("cpu", 1_000), ("pods", 1), (CARD, 1)))
    return facts.decide(nodes, facts.job("ns/job", workers, constraints=asks))


def test_a_worker_goes_to_the_node_that_has_what_it_requests() -> None:
    found = planned(node("plain", 1), node("cards", 8, rdma_hca=4))
    assert found.placements["ns/job"].base == {0: "cards"}


@pytest.mark.parametrize(("cards", "reason"), [(2, Reason.UNSCHEDULABLE), (4, None)])
def test_a_job_is_not_admitted_on_nodes_without_it(cards: int, reason: Reason | None) -> None:
    """The GPUs of the plain node would be kept for it in vain."""
    found = planned(node("plain", 8), node("cards", 8, rdma_hca=cards), workers=4)
    assert facts.kinds(found) == ([] if reason else [Admit])
    assert found.refusals.get("ns/job") is None or found.refusals["ns/job"].reason is reason


def test_what_no_node_names_is_left_to_kube_scheduler() -> None:
    assert planned(node("plain", 1)).actions == facts.starts("ns/job")


def test_a_node_of_which_no_resource_is_known_is_not_limited() -> None:
    """Local machines do not say what they have."""
    found = planned(facts.node("local"), node("cards", 0, rdma_hca=1))
    assert found.actions == facts.starts("ns/job")


def attempt(workers: int, cpu: int, *, gpus: int = 1, group: int = 0, kept: tuple[int, ...] = ()) -> Attempt:
    node_pool = NodePool("x", (group,), (("cpu", cpu),) if cpu else (), frozenset((group,)))
    return (node_pool,), gpus, workers, kept


def test_a_gang_that_requests_no_less_than_one_that_was_in_vain_is_hopeless() -> None:
    failed_placements, first = FailedPlacements(), attempt(4, 100)
    failed_placements.add(first, Reason.NO_FREE_GPU)
    assert failed_placements.reason(first) is Reason.NO_FREE_GPU
    assert failed_placements.reason(attempt(4, 100)) is None, "another site is another attempt"
    for hopeless in (attempt(4, 100), attempt(5, 100), attempt(4, 101), attempt(9, 900)):
        assert failed_placements.is_hopeless(hopeless)
    for open_ in (
        attempt(3, 900),
        attempt(9, 99),
        attempt(4, 0),
        attempt(4, 100, gpus=2),
        attempt(4, 100, group=1),
        attempt(4, 100, kept=(0,)),
    ):
        assert not failed_placements.is_hopeless(open_)


def test_a_gang_with_fewer_workers_that_request_more_is_distinguished() -> None:
    failed_placements = FailedPlacements()
    failed_placements.add(attempt(4, 100), Reason.NO_FREE_GPU)
    failed_placements.add(attempt(2, 200), Reason.UNSCHEDULABLE)
    assert failed_placements.is_hopeless(attempt(3, 200))
    assert not failed_placements.is_hopeless(attempt(3, 100))


def test_hope_is_for_gangs_that_were_not_tried() -> None:
    failed_placements, first = FailedPlacements(), attempt(4, 100)
    failed_placements.add(first, Reason.NO_FREE_GPU)
    failed_placements.expire()
    assert not failed_placements.is_hopeless(attempt(5, 100))
    assert failed_placements.reason(first) is Reason.NO_FREE_GPU


PODS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 8)), max_size=40)


def pod(number: int, namespace: str, gpus: int) -> Worker:
    return facts.foreign(gpus, name=f"{namespace}/{number}")


def pinned(number: int, namespace: str) -> Worker:
    """A pod that asks for one node, by its name."""
    field = NodeSelectorRequirement("metadata.name", "In", (f"n{number}",))
    return replace(pod(number, namespace, 1), constraints=Constraints(affinity=(NodeSelectorTerm(fields=(field,)),)))


def test_a_flood_of_one_tenant_leaves_room_for_the_others() -> None:
    flood, other = [pinned(number, "flood") for number in range(1000)], [pod(0, "team", 2), pod(1, "team", 4)]
    found = served([*flood, *other], most=10)
    assert found == [*flood[:8], *other]


@given(PODS, st.integers(1, 12))
def test_all_pods_of_at_most_so_many_kinds_are_served(given_pods: list[tuple[str, int]], most: int) -> None:
    pods = [pod(number, namespace, gpus) for number, (namespace, gpus) in enumerate(given_pods)]
    found = served(pods, most)
    kinds, all_kinds = ({(each.name[0], each.gpus) for each in group} for group in (found, pods))
    assert len(kinds) == min(most, len(all_kinds))
    assert found == [each for each in pods if (each.name[0], each.gpus) in kinds]
    counts = [sum(namespace == name for namespace, _ in kinds) for name in {name for name, _ in all_kinds}]
    left_out = {namespace for namespace, _ in all_kinds - kinds}
    fewest = min((sum(namespace == name for namespace, _ in kinds) for name in left_out), default=0)
    assert not left_out or max(counts) <= fewest + 1, "nobody has more because others come later"
