"""Does it pay to place jobs together that come together? The same jobs, placed one after the other and together.

First the CPU time of a decision: a burst of 50 jobs on 64 nodes with 4 GPUs of which a third is taken. Then episodes as
in `placement.py`, on 24 nodes, in which this many jobs come at a time. `predicted` is the sum of seconds that the
placements of a burst cost by what is believed, in the mean over bursts of `one by one`; `saved` by how many percent the
mean completion time is below that of one by one, in the mean over episodes, with its 95 % interval (Student's t).
  online   a model that begins at a prior that knows nothing of clusters, and learns
  oracle   knows the true performance
Episodes are those to judge by: nothing was chosen on them.

Takes a minute of a core.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from bench.command import Option
from bench.printing import Parts, Table
from bench.statistics import median_and_range, saved
from espalier_lab.scheduling.placement import placers
from espalier_lab.scheduling.placement.beliefs import Belief, wide_prior
from espalier_lab.scheduling.placement.candidates import candidates
from espalier_lab.scheduling.placement.cluster import PlacementCluster
from espalier_lab.scheduling.placement.costs import Gang, PlacementCosts
from espalier_lab.scheduling.placement.joint import one_by_one, together
from espalier_lab.scheduling.placement.occupancy import Occupancy, PlacedJob
from espalier_lab.scheduling.placement.performance import Truth
from espalier_lab.scheduling.placement.placers import Model, Oracle
from espalier_lab.scheduling.placement.tasks import KINDS, Family, PlacementEpisode, draw_task, episode
from espalier_lab.scheduling.seed_split import SeedSplit

FAMILY: Final = Family(nodes=24)
LARGE: Final = Family(nodes=64)
GANGS: Final = 50
SIZES: Final = (1, 2, 4, 8)
OPTIONS: Final = {
    "episodes": Option(40),
    "bursts": Option([10, 20], "jobs that come at a time"),
    "repeats": Option(20, "bursts of 50 jobs to measure"),
}
QUICK: Final = {"episodes": 2, "repeats": 3}

Placing = Model | Oracle


def in_bursts(drawn: PlacementEpisode, size: int) -> PlacementEpisode:
    """Return the episode in which `size` jobs come at the time of the first of them."""
    arrivals = tuple(
        replace(each, at=drawn.arrivals[index - index % size].at) for index, each in enumerate(drawn.arrivals)
    )
    return replace(drawn, arrivals=arrivals)


def busy(rng: np.random.Generator, family: Family) -> tuple[Occupancy, dict[str, float]]:
    """Return a cluster of which a third is taken, and the steps that its jobs still take."""
    occupancy, steps = Occupancy(family.nodes, family.node_gpus, family.rack_nodes), dict[str, float]()
    while sum(occupancy.free) > family.gpus * 2 / 3:
        name, choices = f"runs-{len(steps)}", candidates(occupancy, int(rng.choice(SIZES)))
        occupancy.add(name, PlacedJob(int(rng.integers(KINDS)), choices[int(rng.integers(len(choices)))]))
        steps[name] = float(rng.uniform(100, 10_000))
    return occupancy, steps


def burst(rng: np.random.Generator, free: int) -> list[Gang]:
    """Return 50 gangs for which there is room."""
    while True:
        sizes = [int(size) for size in rng.choice(SIZES, GANGS, p=(0.3, 0.3, 0.25, 0.15))]
        if sum(sizes) <= free:
            break
    return [
        Gang(f"starts-{index}", int(rng.integers(KINDS)), size, float(rng.uniform(100, 10_000)))
        for index, size in enumerate(sizes)
    ]


def decisions(repeats: int) -> Table:
    """Return the CPU time of a decision, and what it costs by prediction."""
    times: dict[str, list[float]] = {"one by one": [], "together": []}
    seconds: dict[str, list[float]] = {"one by one": [], "together": []}
    for seed in range(repeats):
        rng = np.random.default_rng(seed)
        occupancy, steps = busy(rng, LARGE)
        gangs, truth = burst(rng, sum(occupancy.free)), Truth(draw_task(LARGE, rng))
        ways: dict[str, Callable[[], Sequence[object]]] = {
            "one by one": lambda: one_by_one(PlacementCosts(truth, occupancy, steps), gangs),  # noqa: B023
            "together": lambda: together(truth, occupancy, steps, gangs),  # noqa: B023
        }
        for name, way in ways.items():
            began = time.process_time()
            found = way()
            times[name].append(1_000 * (time.process_time() - began))
            costs, total = PlacementCosts(truth, occupancy, steps), 0.0
            for gang, nodes in zip(gangs, found, strict=True):
                total += float(costs.added(gang, [nodes])[0])  # type: ignore[list-item]
                costs.add(gang.name, PlacedJob(gang.kind, nodes), gang.steps)  # type: ignore[arg-type]
            seconds[name].append(total)
    rows = [
        (
            name,
            median_and_range(times[name]),
            f"{100 * statistics.fmean(1 - one / seconds['one by one'][at] for at, one in enumerate(found)):.1f}",
        )
        for name, found in seconds.items()
    ]
    head = ("placed", "CPU, ms", "predicted less, %")
    return Table(f"A burst of {GANGS} jobs on {LARGE.nodes} nodes, {repeats} bursts", head, rows)


def online(drawn: PlacementEpisode) -> Placing:
    """Return the model that learns from nothing."""
    return Model(Belief(wide_prior(), drawn.family.nodes))


def oracle(_: PlacementEpisode) -> Placing:
    """Return what knows the truth."""
    return Oracle()


def episodes(count: int, size: int) -> Table:
    """Return mean completion times of `count` episodes with bursts of this size."""
    drawn = [in_bursts(episode(FAMILY, SeedSplit.JUDGE, index), size) for index in range(count)]
    rows = []
    for name, make in (("online", online), ("oracle", oracle)):
        single = [placers.run(PlacementCluster(each), make(each)) for each in drawn]
        joint = [placers.run_together(PlacementCluster(each), make(each)) for each in drawn]
        less = saved(joint, single)
        rows.append(
            (
                name,
                f"{statistics.fmean(single):,.0f}",
                f"{statistics.fmean(joint):,.0f}",
                less.text(".1f"),
                f"{less.wins} of {count}",
            )
        )
    head = ("by", "one by one, s", "together, s", "saved, %", "better")
    return Table(f"Bursts of {size} jobs, {count} episodes", head, rows)


def run(options: argparse.Namespace) -> Parts:
    """Measure decisions, then play episodes."""
    yield decisions(options.repeats)
    for size in options.bursts:
        yield episodes(options.episodes, size)
