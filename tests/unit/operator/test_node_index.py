"""A fleet is used again for nodes that a plan cannot tell from those it was made of, and only for these."""

from __future__ import annotations

from dataclasses import replace

import pytest

from espalier_operator.cluster import node_index as node_pools
from espalier_operator.cluster.node_index import NodeIndex, node_index_of
from espalier_operator.model import Node
from espalier_operator.model.constraints import ANYWHERE, Constraints, Taint
from espalier_operator.planner import plan
from espalier_operator.policies.fair import FairPolicy
from operator_world.crowds import NOW, crowd

NODE = Node(name="a", gpu_type="x", allocatable=8, labels={"zone": "1"}, resources={"cpu": 4}, used={"cpu": 1})
OTHER = replace(NODE, name="b")
IN_ZONE = Constraints(node_selector=(("zone", "1"),))


@pytest.fixture
def node_index() -> NodeIndex:
    return node_index_of((NODE, OTHER), (ANYWHERE, IN_ZONE), "rack")


@pytest.mark.parametrize("same", [{}, {"used": {}}, {"resources": {}}, {"silent_since": 1.0}, {"departs_at": 1.0}])
def test_what_pods_use_makes_no_other_fleet(node_index: NodeIndex, same: dict[str, object]) -> None:
    nodes = (NODE, replace(OTHER, **same))  # type: ignore[arg-type]
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
    nodes = (NODE, replace(OTHER, **other))  # type: ignore[arg-type]
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
