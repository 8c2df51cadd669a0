"""Costs of placements of a gang, many at once: `performance.step_time` of it and of delayed jobs, in arrays.

A gang on one node delays each job that is on that node alone in proportion to its GPUs, so one number per node and kind
represents all of these. Jobs on several nodes are evaluated one by one: only the slowest of their nodes counts, and
they share the network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from espalier_lab.scheduling.placement.candidates import Nodes
from espalier_lab.scheduling.placement.occupancy import Occupancy, PlacedJob
from espalier_lab.scheduling.placement.performance import Performance, bytes_sent
from espalier_lab.scheduling.placement.tasks import KINDS, kinds

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Gang(NamedTuple):
    """A job that must be placed."""

    name: str
    kind: int
    gpus: int
    steps: float
    """Remaining steps."""
    unit: int = 1
    """GPUs of a worker: each node gives a multiple of them."""


class PlacementCosts:
    """Jobs on a cluster, and the cost of one more, by a belief about its performance."""

    def __init__(
        self,
        performance: Performance,
        occupancy: Occupancy,
        steps_left: Mapping[str, float],
        opening: float = 0.0,
    ) -> None:
        """Copy the jobs on the nodes; `steps_left` has the remaining steps of each.

        The cost to later jobs if empty nodes get parts of gangs is added `opening` times (see `_stranding`).
        """
        nodes = len(occupancy.free)
        self.occupancy = Occupancy(nodes, occupancy.node_gpus, occupancy.rack_nodes)
        self.occupancy.free = [*occupancy.free]  # nodes may lack GPUs
        for placed in occupancy.jobs.values():
            for node, count in placed.nodes:
                self.occupancy.free[node] += count
        gpus = np.array(self.occupancy.free)
        self._opening = opening
        self._was_empty = np.zeros(nodes, bool)
        self._longest = np.zeros(nodes)
        """For nodes that were empty: seconds of the longest gang there on an ideal node."""
        self._slowness = np.array([performance.slowness(node) for node in range(nodes)])
        self._interference = np.array(
            [[performance.interference(kind, other) for other in range(KINDS)] for kind in range(KINDS)]
        )
        self._nic, self._uplink = performance.nic_bytes(), performance.uplink_bytes()
        self._rack = np.arange(nodes) // occupancy.rack_nodes
        self._load = np.zeros((nodes, KINDS))
        """The part of each node's GPUs held by jobs of each kind."""
        self._delay = np.zeros((nodes, KINDS))
        """Seconds by which a job of this kind on all GPUs of the node would delay jobs that are only there."""
        self._spread: dict[str, tuple[PlacedJob, float]] = {}
        """Jobs on several nodes, with their remaining steps."""
        self._known: _Spread | None = None
        """The same in arrays, until they change."""
        self._steps: dict[str, float] = {}
        for name, placed in occupancy.jobs.items():
            self.add(name, placed, steps_left[name])
        if opening:
            self._was_empty = (np.array(self.occupancy.free) == gpus) & (gpus > 0)

    def add(self, name: str, placed: PlacedJob, steps: float) -> None:
        """Put a job on its nodes."""
        self.occupancy.add(name, placed)
        self._steps[name] = steps
        self._count(placed, steps, 1.0)
        if len(placed.nodes) > 1:
            self._spread[name], self._known = (placed, steps), None

    def remove(self, name: str) -> PlacedJob:
        """Take a job off its nodes; return its placement."""
        placed = self.occupancy.jobs[name]
        self.occupancy.remove(name)
        self._count(placed, self._steps.pop(name), -1.0)
        if self._spread.pop(name, None) is not None:
            self._known = None
        return placed

    def _count(self, placed: PlacedJob, steps: float, sign: float) -> None:
        for node, count in placed.nodes:
            self._load[node, placed.kind] += sign * count / self.occupancy.node_gpus
        if len(placed.nodes) == 1:
            node, _ = placed.nodes[0]
            seconds = steps * kinds()[placed.kind].compute_seconds * self._slowness[node]
            self._delay[node] += sign * seconds * self._interference[placed.kind]
        for node, _ in placed.nodes:
            if self._was_empty[node]:
                there = self.occupancy.on_node[node].items()
                alone = [self._steps[name] * kinds()[kind].compute_seconds for name, (kind, _) in there]
                self._longest[node] = max(alone, default=0.0)

    def added(self, gang: Gang, placements: Sequence[Nodes]) -> Floats:
        """Return (placements), the seconds of the gang on each, plus its delays of others."""
        flat = [(row, node, count) for row, nodes in enumerate(placements) for node, count in nodes]
        row, node, count = np.array(flat, np.int64).T
        lengths = np.array([len(nodes) for nodes in placements])
        first = np.cumsum(lengths) - lengths
        taken = np.zeros((len(placements), len(self._slowness)))
        taken[row, node] = count / self.occupancy.node_gpus
        several = lengths > 1
        rack = self._rack[node]
        crosses = rack[first] != rack[first + lengths - 1]
        ratio = self._slowness * (1 + self._load @ self._interference[gang.kind])
        seconds = kinds()[gang.kind].compute_seconds * np.maximum.reduceat(ratio[node], first)
        if several.any():
            on, of = np.array(self.occupancy.exchanging_on), np.array(self.occupancy.exchanging_of)
            sent = bytes_sent(PlacedJob(gang.kind, placements[0]))
            link = (np.maximum.reduceat(on[node], first) + 1) / self._nic
            uplink = (np.maximum.reduceat(of[rack], first) + 1) / self._uplink
            seconds = seconds + np.where(several, sent * np.maximum(link, np.where(crosses, uplink, 0)), 0)
        found: Floats = gang.steps * seconds + taken @ self._delay[:, gang.kind]
        if self._opening:
            alone = gang.steps * kinds()[gang.kind].compute_seconds
            found += self._opening * np.add.reduceat(self._stranding(alone, node, count), first)
        if self._spread:
            racks = np.zeros((len(placements), len(self.occupancy.exchanging_of)), bool)
            racks[row[crosses[row]], rack[crosses[row]]] = True
            found += self._delayed(gang.kind, taken, (taken > 0) & several[:, None], racks)
        return found

    def _stranding(self, alone: float, node: Ints, count: Ints) -> Floats:
        """Return the cost of left-over GPUs to later jobs, in seconds, by node; negative if it falls.

        An empty node that gets a part of a gang cannot be filled by another gang. Later jobs are unknown, so their cost
        is estimated as the seconds of the longest gang there on an ideal node, times the left-over part of the node.
        `alone`: the seconds of the gang that gets `count` GPUs.
        """
        free, longest = np.array(self.occupancy.free)[node], self._longest[node]
        after, before = (free - count) * np.maximum(longest, alone), free * longest
        return np.where(self._was_empty[node], after - before, 0.0) / self.occupancy.node_gpus

    def _delayed(self, kind: int, taken: Floats, links: NDArray[np.bool_], uplinks: NDArray[np.bool_]) -> Floats:
        """Return the seconds by which jobs on several nodes are delayed.

        `taken`, (placements, nodes): the gang's part of each node's GPUs; `links`, of the same shape, and `uplinks`,
        (placements, racks): the parts of the network that it uses.
        """
        if self._known is None:
            self._known = _Spread.of(self._spread, self._rack)
        jobs, node, first = self._known, self._known.node, self._known.first
        others = (self._load @ self._interference.T)[node, jobs.kind]
        others -= self._interference[jobs.kind, jobs.kind] * jobs.count / self.occupancy.node_gpus
        slower = self._slowness[node]
        before = slower * (1 + others)
        after = before + slower * self._interference[jobs.kind, kind] * taken[:, node]
        delay = jobs.compute * (np.maximum.reduceat(after, first, axis=1) - np.maximum.reduceat(before, first))
        on, of = np.array(self.occupancy.exchanging_on), np.array(self.occupancy.exchanging_of)

        def exchanged(on: NDArray[np.int64], of: NDArray[np.int64]) -> Floats:
            link = np.maximum.reduceat(on[..., node], first, axis=-1) / self._nic
            uplink = np.maximum.reduceat(of[..., jobs.rack], first, axis=-1) / self._uplink
            return jobs.sent * np.maximum(link, np.where(jobs.crosses, uplink, 0))

        delay += exchanged(on + links, of + uplinks) - exchanged(on, of)
        return np.asarray(delay @ jobs.steps)


@dataclass(frozen=True, slots=True, eq=False)
class _Spread:
    """Jobs on several nodes in arrays: first of shape (jobs), then (nodes of all jobs)."""

    steps: Floats
    compute: Floats
    """Seconds of a step without the exchange of gradients."""
    sent: Floats
    """Bytes sent in a step."""
    crosses: NDArray[np.bool_]
    """Whether it is in several racks."""
    first: NDArray[np.int64]
    """Index of each job's first node."""
    node: NDArray[np.int64]
    rack: NDArray[np.int64]
    kind: NDArray[np.int64]
    count: NDArray[np.int64]

    @classmethod
    def of(cls, spread: Mapping[str, tuple[PlacedJob, float]], racks: NDArray[np.int64]) -> _Spread:
        """Return them; `racks` has the rack of each node."""
        jobs, table = [placed for placed, _ in spread.values()], kinds()
        node, count, kind = np.array(
            [(node, count, placed.kind) for placed in jobs for node, count in placed.nodes], np.int64
        ).T
        lengths = np.array([len(placed.nodes) for placed in jobs])
        first, rack = np.cumsum(lengths) - lengths, racks[node]
        return cls(
            steps=np.array([steps for _, steps in spread.values()]),
            compute=np.array([table[placed.kind].compute_seconds for placed in jobs]),
            sent=np.array([bytes_sent(placed) for placed in jobs]),
            crosses=rack[first] != rack[first + lengths - 1],  # nodes, and so racks, ascend
            first=first,
            node=node,
            rack=rack,
            kind=kind,
            count=count,
        )
