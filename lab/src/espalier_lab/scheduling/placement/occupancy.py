"""Jobs on the nodes of a cluster, as plain counts; `performance` has their effect on speed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class PlacedJob(NamedTuple):
    """A running job: its kind, and its GPUs by node, in ascending order of nodes."""

    kind: int
    nodes: tuple[tuple[int, int], ...]

    @property
    def gpus(self) -> int:
        """Number of its GPUs."""
        return sum(count for _, count in self.nodes)


class Occupancy:
    """Jobs on nodes."""

    def __init__(self, nodes: int, node_gpus: int, rack_nodes: int, jobs: Iterable[tuple[str, PlacedJob]] = ()) -> None:
        """Begin with `jobs` on `nodes` nodes of `node_gpus` GPUs, `rack_nodes` in a rack."""
        self.node_gpus, self.rack_nodes = node_gpus, rack_nodes
        self.jobs: dict[str, PlacedJob] = {}
        self.on_node: list[dict[str, tuple[int, int]]] = [{} for _ in range(nodes)]
        """For each node: the kind and the GPUs of each job there."""
        self.free = [node_gpus] * nodes
        self.exchanging_on = [0] * nodes
        """For each node: jobs with workers on other nodes too, which exchange gradients through its network card."""
        self.exchanging_of = [0] * -(-nodes // rack_nodes)
        """For each rack: jobs with workers in other racks too, which use its uplink."""
        for name, placed in jobs:
            self.add(name, placed)

    def racks(self, placed: PlacedJob) -> tuple[int, ...]:
        """Return the racks of a job, in ascending order."""
        return tuple(dict.fromkeys(node // self.rack_nodes for node, _ in placed.nodes))

    def add(self, name: str, placed: PlacedJob) -> None:
        """Put a job on its nodes."""
        self.jobs[name] = placed
        self._count(placed, 1)
        for node, count in placed.nodes:
            self.on_node[node][name] = (placed.kind, count)

    def remove(self, name: str) -> None:
        """Take a job off its nodes."""
        placed = self.jobs.pop(name)
        self._count(placed, -1)
        for node, _ in placed.nodes:
            del self.on_node[node][name]

    def _count(self, placed: PlacedJob, sign: int) -> None:
        for node, count in placed.nodes:
            self.free[node] -= sign * count
        if len(placed.nodes) > 1:
            for node, _ in placed.nodes:
                self.exchanging_on[node] += sign
            racks = self.racks(placed)
            if len(racks) > 1:
                for rack in racks:
                    self.exchanging_of[rack] += sign
