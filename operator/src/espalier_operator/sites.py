"""Where a worker may run: the nodes of one type of GPU that its constraints admit, in groups."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from espalier_operator.constraints import Amounts, Constraints
from espalier_operator.facts import Node


@dataclass(frozen=True, slots=True)
class Site:
    """Where a worker may run: groups of nodes, all of one type of GPU."""

    gpu_type: str
    groups: tuple[int, ...]
    requests: Amounts = ()
    """What the worker needs of a node in addition to GPUs."""


class Grouping:
    """Numbers the groups of nodes that no constraint tells apart."""

    def __init__(self, constraints: Iterable[Constraints]) -> None:
        """Take all constraints that `site` will be asked for."""
        distinct = set(constraints)
        self._keys = sorted(set().union(*(each.keys for each in distinct)))
        self._names = set[str]().union(*(each.names for each in distinct))
        self._numbers: dict[object, int] = {}
        self._examples: list[Node] = []
        """By group: its first node."""
        self._sites: dict[tuple[str, Constraints], Site] = {}

    @property
    def gpu_types(self) -> list[str]:
        """The types that nodes have, in order of name."""
        return sorted({node.gpu_type for node in self._examples})

    def group_of(self, node: Node) -> int:
        """Return the group of `node`."""
        name = node.host if self._names and node.host in self._names else ""
        labels = tuple(map(node.labels.get, self._keys)) if self._keys else ()
        alike = (node.gpu_type, labels, node.taints, name)
        number = self._numbers.setdefault(alike, len(self._examples))
        if number == len(self._examples):
            self._examples.append(node)
        return number

    def site(self, gpu_type: str, constraints: Constraints | None) -> Site:
        """Return where a worker with `constraints` may run on GPUs of `gpu_type`; None: all nodes of the type."""
        if constraints is None:
            same = (group for group, node in enumerate(self._examples) if node.gpu_type == gpu_type)
            return Site(gpu_type, tuple(same))
        known = self._sites.get((gpu_type, constraints))
        if known is None:
            fitting = (
                group
                for group, node in enumerate(self._examples)
                if node.gpu_type == gpu_type and node.admits(constraints)
            )
            known = self._sites[gpu_type, constraints] = Site(gpu_type, tuple(fitting), constraints.requests)
        return known
