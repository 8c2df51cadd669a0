"""The nodes as a plan needs them: which take pods, which are alike, what they offer, and where they are. Pure.

To sort thousands of nodes takes longer than most plans, and nodes change rarely. So the last node indexes are kept, and
a plan that finds the same nodes uses its node index again (`node_index_of`). A node index holds nothing that a plan
changes, and nothing of what pods request.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from espalier_operator.cluster.node_pools import NodeClasses, ReferencedLabels
from espalier_operator.cluster.topology import Rack, racks_of
from espalier_operator.model import Node, host_of
from espalier_operator.model.constraints import Constraints

_KEPT: Final = 2
"""Fleets: one operator needs one; `espalier explain` and tests that compare plans a few."""


class NodeIndex:
    """The nodes of a cluster."""

    def __init__(self, nodes: Collection[Node], mentioned: ReferencedLabels, rack_label: str | None) -> None:
        """Sort `nodes` by what constraints have `mentioned`; `rack_label` is the label that names their rack."""
        self.node_classes = node_classes = NodeClasses(mentioned)
        usable = [node for node in nodes if node.ready and (node.schedulable or node.is_leaving)]
        self.gpu_types = sorted({node.gpu_type for node in usable})
        """The types that nodes have, in order of name."""
        self.groups: Mapping[str, int] = {node.name: node_classes.group_of(node) for node in usable}
        """By node that takes pods, or is about to go: the nodes that no constraint tells apart."""
        self.offers: Mapping[str, int] = {node.name: node.offered for node in usable}
        """By node: its GPUs without those that are announced to go."""
        self.places: Mapping[str, int] = {node.name: place for place, node in enumerate(nodes)}
        """By node: its place among the nodes of a snapshot."""
        machines: dict[str, int] = defaultdict(int)
        for name, offered in self.offers.items():
            machines[host_of(name)] += offered
        self.machines: Mapping[str, int] = dict(machines)
        """By machine: what its nodes offer together."""
        slots: dict[int, dict[int, int]] = defaultdict(lambda: defaultdict(int))
        for group, offered in zip(self.groups.values(), self.offers.values(), strict=True):
            slots[group][offered] += 1
        self.slots: Mapping[int, Mapping[int, int]] = {group: dict(sizes) for group, sizes in slots.items()}
        """By group: how many nodes offer how many GPUs."""
        self.racks: Mapping[str, Rack] = racks_of(usable, rack_label)
        """By node; empty if all are in the same rack."""


def node_index_of(nodes: Collection[Node], constraints: Collection[Constraints], rack_label: str | None) -> NodeIndex:
    """Return the node index of `nodes`, of which a plan asks where pods with these `constraints` may run."""
    node_index = _node_index_of(_NodeQuery(tuple(nodes), ReferencedLabels.by(constraints), rack_label))
    node_index.node_classes.forget()
    return node_index


@dataclass(frozen=True, slots=True, eq=False)
class _NodeQuery:
    """What decides about a node index."""

    nodes: tuple[Node, ...]
    mentioned: ReferencedLabels
    rack_label: str | None

    def __hash__(self) -> int:
        return hash((len(self.nodes), self.rack_label))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, _NodeQuery)
            and (self.rack_label, len(self.nodes)) == (other.rack_label, len(other.nodes))
            and self.mentioned == other.mentioned
            and all(map(_are_alike, self.nodes, other.nodes))
        )


@lru_cache(_KEPT)
def _node_index_of(sought: _NodeQuery) -> NodeIndex:
    return NodeIndex(sought.nodes, sought.mentioned, sought.rack_label)


def _are_alike(one: Node, other: Node) -> bool:
    """Return whether two nodes differ at most in what pods request of them, and in times."""
    return one is other or _decisive(one) == _decisive(other)


def _decisive(node: Node) -> tuple[object, ...]:
    takes_pods = node.ready, node.schedulable, node.allocatable, node.departing
    return node.name, node.gpu_type, *takes_pods, node.taints, node.labels
