"""Where a worker may run: the nodes of one type of GPU that its constraints admit, in groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from espalier_operator.cluster.label_index import Index, Mentioned
from espalier_operator.model import Node
from espalier_operator.model.constraints import Amounts, Constraints

_MOST_KNOWN: Final = 10_000
"""Of how many constraints a grouping keeps the sites from one plan to the next."""

_Groups = tuple[tuple[int, ...], frozenset[int]]
"""Groups in order, and as a set: there may be a thousand, and as many combinations of them."""


@dataclass(frozen=True, slots=True, eq=False)
class Site:
    """Where a worker may run: groups of nodes, all of one type of GPU. A `Grouping` makes equal ones only once."""

    gpu_type: str
    groups: tuple[int, ...]
    requests: Amounts = ()
    """What the worker needs of a node in addition to GPUs."""
    members: frozenset[int] = frozenset()
    """The groups, to look one up."""


class Grouping:
    """Numbers the groups of nodes that no constraint tells apart."""

    def __init__(self, mentioned: Mentioned) -> None:
        """Take what is named by all constraints that `site` will be asked for."""
        self._values, self._names = mentioned.values, mentioned.names
        self._numbers: dict[object, int] = {}
        self._examples: list[Node] = []
        """By group: its first node."""
        self._known: dict[tuple[str, Constraints | None], Site] = {}
        self._sites: dict[tuple[str, tuple[int, ...], Amounts], Site] = {}
        self._fitting: dict[tuple[str, Constraints | None], _Groups] = {}
        """By type and constraints without requests, which tell no groups apart."""
        self._index: Index | None = None

    def group_of(self, node: Node) -> int:
        """Return the group of `node`."""
        name = node.host if self._names and node.host in self._names else ""
        labels = self._deciding(node.labels) if self._values else ()
        alike = (node.gpu_type, labels, node.taints, name)
        number = self._numbers.setdefault(alike, len(self._examples))
        if number == len(self._examples):
            self._examples.append(node)
        return number

    def site(self, gpu_type: str, constraints: Constraints | None) -> Site:
        """Return where a worker with `constraints` may run on GPUs of `gpu_type`; None: all nodes of the type."""
        known = self._known.get((gpu_type, constraints))
        if known is None:
            groups = self._groups_of(gpu_type, None if constraints is None else replace(constraints, requests=()))
            requests = () if constraints is None else constraints.requests
            known = self._known[gpu_type, constraints] = self._one(gpu_type, groups, requests)
        return known

    def forget(self) -> None:
        """Forget the sites if they are many; not within a plan, which tells sites apart by what they are."""
        if len(self._known) > _MOST_KNOWN:
            for known in (self._known, self._sites, self._fitting):
                known.clear()

    def without_requests(self, site: Site) -> Site:
        """Return `site` for a worker that needs nothing but GPUs."""
        return self._one(site.gpu_type, (site.groups, site.members), ())

    def _deciding(self, labels: Mapping[str, str]) -> tuple[tuple[str, str | bool], ...]:
        """Return what of the labels of a node decides: which there are, and where it matters their values."""
        decides = self._values
        found = []
        for key in decides if len(decides) < len(labels) else labels:
            if key in decides and key in labels:
                values, value = decides[key], labels[key]
                found.append((key, value if values is None or value in values else True))
        return tuple(sorted(found))

    def _groups_of(self, gpu_type: str, constraints: Constraints | None) -> _Groups:
        fitting = self._fitting.get((gpu_type, constraints))
        if fitting is None:
            if self._index is None or self._index.groups != len(self._examples):
                self._index = Index(self._examples)
            fitting = self._fitting[gpu_type, constraints] = _in_order(self._index.admitting(gpu_type, constraints))
        return fitting

    def _one(self, gpu_type: str, groups: _Groups, requests: Amounts) -> Site:
        in_order, members = groups
        known = self._sites.get((gpu_type, in_order, requests))
        if known is None:
            known = self._sites[gpu_type, in_order, requests] = Site(gpu_type, in_order, requests, members)
        return known


def _in_order(groups: frozenset[int]) -> _Groups:
    return tuple(sorted(groups)), groups
