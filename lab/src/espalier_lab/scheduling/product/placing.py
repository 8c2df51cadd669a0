"""Wished nodes for the workers of starting jobs, by a learnt placement prior.

The prior was learnt over many clusters (`placement.prior`): the mutual slowdown of jobs on a node, and the speed of the
network. The kinds of a cluster's jobs are unknown, so each counts as the average kind, and all as equally long. Jobs
are placed where a step of each, plus its delays of others' steps, takes the fewest seconds. Nothing is learnt on the
cluster itself, where speeds by node are unknown; so nodes differ only in their jobs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Final

import numpy as np

from espalier_lab.scheduling.placement.beliefs import Prior
from espalier_lab.scheduling.placement.candidates import Nodes
from espalier_lab.scheduling.placement.costs import Gang
from espalier_lab.scheduling.placement.joint import together
from espalier_lab.scheduling.placement.occupancy import Occupancy, PlacedJob
from espalier_lab.scheduling.placement.tasks import KINDS, MOST_INTERFERENCE, kinds
from espalier_operator.policies.learned import Allotment
from espalier_operator.policies.view import View

MOST_NODES: Final = 64
"""Maximum number of considered nodes with free GPUs: half of them with the fewest, half with the most."""

OPENING: Final = 2.0
"""Cost of opening an empty node, times the scarcity of GPUs; chosen by `make bench-wishes`."""
_RESERVE: Final = 0.2
"""Part of all GPUs added to the free ones, so that the cost is finite."""


class AveragePerformance:
    """A `placement.performance.Performance` of the mean of a prior, for jobs of the average kind."""

    def __init__(self, prior: Prior) -> None:
        """Take its means."""
        sensitivity, pressure = prior.rest[:KINDS].mean(), prior.rest[KINDS : 2 * KINDS].mean()
        self._slowness = float(np.exp(prior.slowness[0]))
        self._interference = min(MOST_INTERFERENCE, float(np.exp(sensitivity + pressure)))
        self._nic, self._uplink = (float(each) for each in np.exp(prior.rest[-2:]))

    def slowness(self, node: int) -> float:
        """Return the factor on the duration of a step relative to an ideal node."""
        return self._slowness

    def interference(self, kind: int, other: int) -> float:
        """Return the relative slowdown if another job has all GPUs of its node."""
        return self._interference

    def nic_bytes(self) -> float:
        """Return the bytes per second through a network card."""
        return self._nic

    def uplink_bytes(self) -> float:
        """Return the bytes per second through the uplink of a rack."""
        return self._uplink


@cache
def average_kind() -> int:
    """Return the kind nearest to the mean of all, by the logarithms of compute time and bytes."""
    sizes = np.log([(kind.compute_seconds, kind.gradient_bytes) for kind in kinds()])
    return int(np.argmin(((sizes - sizes.mean(0)) ** 2).sum(1)))


def placed(
    prior: Prior, view: View, allotments: Sequence[Allotment], opening: float = OPENING
) -> tuple[Allotment, ...]:
    """Return the allotments, with jointly chosen nodes for the workers of starting jobs.

    `opening` times `scarcity` is the cost of opening nodes (see `PlacementCosts`). A job that does not fit beside the
    running ones is left to the planner, and so are all jobs if nodes are unknown.
    """
    names = _considered(view)
    if not names:
        return tuple(allotments)
    occupancy = _occupancy(view, names)
    jobs = {job.key: job for job in view.jobs}
    starting = [each for each in allotments if each.workers and not jobs[each.job].workers]
    gangs = []
    for each in starting:
        unit = jobs[each.job].gpus_per_worker
        gangs.append(Gang(each.job, average_kind(), each.workers * unit, 1.0, unit))
    steps = dict.fromkeys(occupancy.jobs, 1.0)
    found = together(AveragePerformance(prior), occupancy, steps, gangs, opening * scarcity(view))
    nodes = {
        gang.name: tuple(names[node] for node, gpus in _most_first(chosen) for _ in range(gpus // gang.unit))
        for gang, chosen in zip(gangs, found, strict=True)
        if chosen is not None
    }
    return tuple(replace(each, nodes=nodes.get(each.job, ())) for each in allotments)


def scarcity(view: View) -> float:
    """Return the scarcity of GPUs: the held ones, over the free ones plus a fifth of all.

    If many are free, the next gang finds empty nodes in any case, and spreading jobs out costs it nothing.
    """
    held, gpus = sum(_held(view).values()), sum(view.nodes.values())
    return held / (max(0, gpus - held) + _RESERVE * gpus) if gpus else 0.0


def _most_first(nodes: Nodes) -> Nodes:
    """Return the nodes with the most workers first: base workers come first."""
    return tuple(sorted(nodes, key=lambda node: -node[1]))


def _considered(view: View) -> list[str]:
    """Return the names of the considered nodes."""
    held = _held(view)
    free = {name: gpus - held.get(name, 0) for name, gpus in view.nodes.items()}
    ranked = sorted((name for name in free if free[name] > 0), key=lambda name: (free[name], name))
    return ranked if len(ranked) <= MOST_NODES else ranked[: MOST_NODES // 2] + ranked[-MOST_NODES // 2 :]


def _held(view: View) -> dict[str, int]:
    """Return the number of GPUs held by jobs, by node."""
    held: dict[str, int] = {}
    gpus_each = {job.key: job.gpus_per_worker for job in view.jobs}
    for key, nodes in view.held.items():
        for name in nodes:
            held[name] = held.get(name, 0) + gpus_each.get(key, 0)
    return held


def _occupancy(view: View, names: Sequence[str]) -> Occupancy:
    """Return the occupancy of the considered nodes; missing GPUs of a node count as taken."""
    largest, index = max(view.nodes.values()), {name: place for place, name in enumerate(names)}
    occupancy = Occupancy(len(names), largest, len(names))
    for place, name in enumerate(names):
        occupancy.free[place] -= largest - view.nodes[name]
    gpus_each = {job.key: job.gpus_per_worker for job in view.jobs}
    for key, nodes in view.held.items():
        counts: dict[int, int] = {}
        for name in nodes:
            if name in index and key in gpus_each:
                counts[index[name]] = counts.get(index[name], 0) + gpus_each[key]
        if counts:
            occupancy.add(key, PlacedJob(average_kind(), tuple(sorted(counts.items()))))
    return occupancy
