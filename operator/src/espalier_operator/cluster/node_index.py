"""Index of a cluster's nodes: usable nodes, groups of equivalent ones, their GPUs, and the node pool of a worker.

Tenants may write a thousand different constraints. Nodes that none of them distinguishes are one group, so there are no
more groups than values that constraints name; the groups that a constraint admits are computed from sets of groups by
value, not group by group. The result is that of `Constraints.admit`.

Indexing thousands of nodes takes longer than most plans, and nodes change rarely. So the last node indexes are cached,
and a plan with the same nodes reuses its node index (`node_index_of`). A node index holds nothing that a plan changes,
and no requests of pods.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, Self, TypeVar

from espalier_operator.model import Node, host_of
from espalier_operator.model.constraints import (
    UNNAMED,
    Amounts,
    Constraints,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    Taint,
)

K = TypeVar("K")
_Groups = frozenset[int]
_NO_GROUPS: _Groups = frozenset()
_MOST_KNOWN: Final = 10_000
"""Number of constraints whose node pools `NodeClasses` keeps from one plan to the next."""
_Ordered = tuple[tuple[int, ...], _Groups]
"""Groups in order, and as a set. There may be a thousand groups, and as many combinations of them."""
_KEPT: Final = 2
"""Number of cached node indexes: an operator needs one; `espalier explain` and tests that compare plans, a few."""


ZONE_LABEL: Final = "topology.kubernetes.io/zone"

Rack = tuple[str, str]
"""The values of the zone label and of the rack label, each "" on nodes without the label."""


@dataclass(frozen=True, slots=True)
class ReferencedLabels:
    """Labels and names of nodes that constraints refer to; they alone distinguish nodes."""

    values: Mapping[str, set[str] | None]
    """Values of each label that constraints distinguish from others; None: all values."""
    names: set[str]
    """Names of nodes that constraints refer to."""

    @classmethod
    def by(cls, constraints: Iterable[Constraints]) -> Self:
        """Return the labels and names that `constraints` refer to."""
        values, names = dict[str, set[str] | None](), set[str]()
        for each in constraints:
            for key, value in each.node_selector:
                _mention(values, key, (value,))
            for term in each.terms if each.alternatives else ():  # most have none
                for expression in term.labels:
                    _mention(values, expression.key, None if expression.compares else expression.values)
                for expression in term.fields:
                    names.update(expression.values)
        return cls(values, names)


def _mention(values: dict[str, set[str] | None], key: str, more: Iterable[str] | None) -> None:
    known = values.setdefault(key, set())
    if more is None:
        values[key] = None
    elif known is not None:
        known.update(more)


class LabelIndex:
    """Index of groups of nodes, each represented by one node, by the properties that constraints refer to."""

    def __init__(self, examples: Sequence[Node]) -> None:
        """Number the groups in the order of `examples`."""
        self.groups = len(examples)
        """Number of groups."""
        self._all: _Groups = frozenset(range(self.groups))
        self._examples = examples
        self._by_type = _sets((node.gpu_type, (group,)) for group, node in enumerate(examples))
        self._by_name = _sets((node.host, (group,)) for group, node in enumerate(examples))
        self._by_taints = _sets((node.taints, (group,)) for group, node in enumerate(examples))
        self._by_label: dict[str, tuple[Mapping[str, _Groups], _Groups]] = {}
        self._by_expression: dict[NodeSelectorRequirement, _Groups] = {}

    def admitting(self, gpu_type: str, constraints: Constraints | None) -> frozenset[int]:
        """Return the groups of `gpu_type` whose nodes admit a pod with `constraints`; None: all of the type."""
        found = self._by_type.get(gpu_type, _NO_GROUPS)
        if constraints is None:
            return found
        for key, value in constraints.node_selector:
            found &= self._labelled(key)[0].get(value, _NO_GROUPS)
        for terms in constraints.alternatives:
            found &= _NO_GROUPS.union(*map(self._matching, terms))
        if found:
            found &= self._tolerated(constraints.tolerates)
        return found

    def _tolerated(self, tolerates: Callable[[Iterable[Taint]], bool]) -> _Groups:
        return _NO_GROUPS.union(*(groups for taints, groups in self._by_taints.items() if tolerates(taints)))

    def _matching(self, term: NodeSelectorTerm) -> _Groups:
        if term.is_empty:
            return _NO_GROUPS
        found = self._all
        for expression in term.labels:
            found &= self._meeting(expression)
        for expression in term.fields:
            found &= _taken(expression, expression.takes_name, self._by_name, self._all)
        return found

    def _meeting(self, expression: NodeSelectorRequirement) -> _Groups:
        known = self._by_expression.get(expression)
        if known is None:
            by_value, labelled = self._labelled(expression.key)
            known = _taken(expression, expression.takes, by_value, labelled)
            if expression.takes(None):
                known |= self._all - labelled
            self._by_expression[expression] = known
        return known

    def _labelled(self, key: str) -> tuple[Mapping[str, _Groups], _Groups]:
        """Return the groups that have a label: by value, and all together."""
        known = self._by_label.get(key)
        if known is None:
            pairs = ((node.labels.get(key), (group,)) for group, node in enumerate(self._examples))
            by_value = _sets((value, groups) for value, groups in pairs if value is not None)
            known = self._by_label[key] = by_value, _NO_GROUPS.union(*by_value.values())
        return known


def _taken(
    expression: NodeSelectorRequirement, takes: Callable[[str], bool], by_value: Mapping[str, _Groups], having: _Groups
) -> _Groups:
    """Return the groups among those `having` a value whose value `takes`, a rule of `expression`, accepts."""
    if expression.compares:
        return _NO_GROUPS.union(*(groups for value, groups in by_value.items() if takes(value)))
    named = {value for value in expression.values if value in by_value}
    if takes(UNNAMED):
        return having.difference(*(by_value[value] for value in named if not takes(value)))
    return _NO_GROUPS.union(*(by_value[value] for value in named if takes(value)))


def _sets(pairs: Iterable[tuple[K, tuple[int]]]) -> dict[K, _Groups]:
    found: dict[K, set[int]] = defaultdict(set)
    for key, groups in pairs:
        found[key].update(groups)
    return {key: frozenset(groups) for key, groups in found.items()}


@dataclass(frozen=True, slots=True, eq=False)
class NodePool:
    """Groups of nodes of one GPU type on which a worker may run. A `NodeClasses` makes equal ones only once."""

    gpu_type: str
    groups: tuple[int, ...]
    requests: Amounts = ()
    """Requests of the worker in addition to GPUs."""
    members: frozenset[int] = frozenset()
    """The groups as a set, for look-up."""


class NodeClasses:
    """Numbers the groups of nodes that no constraint distinguishes."""

    def __init__(self, mentioned: ReferencedLabels) -> None:
        """Take the references of all constraints with which `node_pool` will be called."""
        self._values, self._names = mentioned.values, mentioned.names
        self._numbers: dict[object, int] = {}
        self._examples: list[Node] = []
        """The first node of each group."""
        self._known: dict[tuple[str, Constraints | None], NodePool] = {}
        self._node_pools: dict[tuple[str, tuple[int, ...], Amounts], NodePool] = {}
        self._fitting: dict[tuple[str, Constraints | None], _Ordered] = {}
        """Groups by type and constraints without requests, which distinguish no groups."""
        self._index: LabelIndex | None = None

    def group_of(self, node: Node) -> int:
        """Return the group of `node`."""
        name = node.host if self._names and node.host in self._names else ""
        labels = self._deciding(node.labels) if self._values else ()
        alike = (node.gpu_type, labels, node.taints, name)
        number = self._numbers.setdefault(alike, len(self._examples))
        if number == len(self._examples):
            self._examples.append(node)
        return number

    def node_pool(self, gpu_type: str, constraints: Constraints | None) -> NodePool:
        """Return the node pool of a worker with `constraints` on GPUs of `gpu_type`; None: all nodes of the type."""
        known = self._known.get((gpu_type, constraints))
        if known is None:
            groups = self._groups_of(gpu_type, None if constraints is None else replace(constraints, requests=()))
            requests = () if constraints is None else constraints.requests
            known = self._known[gpu_type, constraints] = self._one(gpu_type, groups, requests)
        return known

    def forget(self) -> None:
        """Drop the node pools if there are many; not within a plan, which compares node pools by identity."""
        if len(self._known) > _MOST_KNOWN:
            for known in (self._known, self._node_pools, self._fitting):
                known.clear()

    def without_requests(self, node_pool: NodePool) -> NodePool:
        """Return `node_pool` for a worker that needs only GPUs."""
        return self._one(node_pool.gpu_type, (node_pool.groups, node_pool.members), ())

    def _deciding(self, labels: Mapping[str, str]) -> tuple[tuple[str, str | bool], ...]:
        """Return the labels of a node that constraints refer to: their presence, and their value where it matters."""
        decides = self._values
        found = []
        for key in decides if len(decides) < len(labels) else labels:
            if key in decides and key in labels:
                values, value = decides[key], labels[key]
                found.append((key, value if values is None or value in values else True))
        return tuple(sorted(found))

    def _groups_of(self, gpu_type: str, constraints: Constraints | None) -> _Ordered:
        fitting = self._fitting.get((gpu_type, constraints))
        if fitting is None:
            if self._index is None or self._index.groups != len(self._examples):
                self._index = LabelIndex(self._examples)
            fitting = self._fitting[gpu_type, constraints] = _in_order(self._index.admitting(gpu_type, constraints))
        return fitting

    def _one(self, gpu_type: str, groups: _Ordered, requests: Amounts) -> NodePool:
        in_order, members = groups
        known = self._node_pools.get((gpu_type, in_order, requests))
        if known is None:
            known = self._node_pools[gpu_type, in_order, requests] = NodePool(gpu_type, in_order, requests, members)
        return known


def _in_order(groups: frozenset[int]) -> _Ordered:
    return tuple(sorted(groups)), groups


def racks_of(nodes: Collection[Node], rack_label: str | None) -> dict[str, Rack]:
    """Return the rack of each node by name; empty if all are in the same rack."""
    labels = (ZONE_LABEL,) if rack_label is None else (ZONE_LABEL, rack_label)
    if all(len({node.labels.get(label) for node in nodes}) <= 1 for label in labels):
        return {}
    return {node.name: (node.labels.get(ZONE_LABEL, ""), node.labels.get(rack_label or "", "")) for node in nodes}


class NodeIndex:
    """Index of the nodes of a cluster."""

    def __init__(self, nodes: Collection[Node], mentioned: ReferencedLabels, rack_label: str | None) -> None:
        """Group `nodes` by the labels and names `mentioned` by constraints; `rack_label` is the label of the rack."""
        self.node_classes = node_classes = NodeClasses(mentioned)
        usable = [node for node in nodes if node.ready and (node.schedulable or node.is_leaving)]
        self.gpu_types = sorted({node.gpu_type for node in usable})
        """GPU types of the nodes, in order of name."""
        self.groups: Mapping[str, int] = {node.name: node_classes.group_of(node) for node in usable}
        """Group of each node that takes pods or is about to go."""
        self.offers: Mapping[str, int] = {node.name: node.offered for node in usable}
        """Number of GPUs of each node that are not announced to go."""
        self.places: Mapping[str, int] = {node.name: place for place, node in enumerate(nodes)}
        """Position of each node in the snapshot."""
        machines: dict[str, int] = defaultdict(int)
        for name, offered in self.offers.items():
            machines[host_of(name)] += offered
        self.machines: Mapping[str, int] = dict(machines)
        """Sum of the offered GPUs of each machine's nodes."""
        slots: dict[int, dict[int, int]] = defaultdict(lambda: defaultdict(int))
        for group, offered in zip(self.groups.values(), self.offers.values(), strict=True):
            slots[group][offered] += 1
        self.slots: Mapping[int, Mapping[int, int]] = {group: dict(sizes) for group, sizes in slots.items()}
        """Number of nodes in each group by their number of offered GPUs."""
        self.racks: Mapping[str, Rack] = racks_of(usable, rack_label)
        """Rack of each node; empty if all are in the same rack."""


def node_index_of(nodes: Collection[Node], constraints: Collection[Constraints], rack_label: str | None) -> NodeIndex:
    """Return the node index of `nodes` for a plan whose pods have these `constraints`."""
    node_index = _node_index_of(_NodeQuery(tuple(nodes), ReferencedLabels.by(constraints), rack_label))
    node_index.node_classes.forget()
    return node_index


@dataclass(frozen=True, slots=True, eq=False)
class _NodeQuery:
    """Key of the cache of node indexes."""

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
    """Return whether two nodes differ at most in resources, requests of pods, and times."""
    return one is other or _decisive(one) == _decisive(other)


def _decisive(node: Node) -> tuple[object, ...]:
    takes_pods = node.ready, node.schedulable, node.allocatable, node.departing
    return node.name, node.gpu_type, *takes_pods, node.taints, node.labels
