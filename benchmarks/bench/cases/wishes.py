"""Does it pay to place workers on the nodes that a policy file wishes? Compared with the usual rules of placement.

Clusters and jobs are those of `placement.py` (docs/reports/learned-scheduling.md), without a change in the middle.
All ways of placing see the same jobs. A policy file knows neither nodes' speeds nor jobs' kinds: it places all jobs
that can start at a time together, by the mean of a prior that was learnt on other clusters, and follows nothing that
is measured.
  wishes                      with no cost of opening empty nodes
  wishes, nodes kept whole    with the cost that was best on the episodes to choose by, at the first two loads; it is
                              times how scarce GPUs are at that moment (`product.placing.scarcity`)
`saved` is by how many percent the mean completion time is below that of the row, in the mean over episodes, with its
95 % interval (Student's t). No episode is used twice.

Takes 10 minutes of a core.
"""

from __future__ import annotations

import argparse
import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Final

from bench.command import Option
from bench.printing import Parts, Table, progress
from bench.statistics import saved
from espalier_lab.scheduling.placement import placers
from espalier_lab.scheduling.placement.beliefs import Prior
from espalier_lab.scheduling.placement.candidates import Nodes
from espalier_lab.scheduling.placement.cluster import ContendingJob, PlacementCluster
from espalier_lab.scheduling.placement.prior import learn_prior
from espalier_lab.scheduling.placement.tasks import Family, episode
from espalier_lab.scheduling.product.placing import placed
from espalier_lab.scheduling.seed_split import SeedSplit
from espalier_lab.simulator.rounds import answer
from espalier_operator.policies.learned import Allotment
from espalier_operator.policies.view import Candidate, View

OPENINGS: Final = (1.0, 2.0, 3.0)
CHOSEN_BY: Final = 2
"""So many loads, the first ones, choose the cost; the others show whether it holds at a load that it does not know."""
WISHES: Final = "wishes"
KEPT: Final = "wishes, nodes kept whole"
OPTIONS: Final = {
    "loads": Option([0.35, 0.5, 0.7]),
    "train": Option(80, "episodes to learn the prior on"),
    "choose": Option(60, "episodes to choose the cost by, for each load"),
    "judge": Option(200, "episodes to judge by, for each load"),
}
QUICK: Final = {"train": 2, "choose": 1, "judge": 2}


def by_wishes(cluster: PlacementCluster, prior: Prior, opening: float) -> float:
    """Run an episode in which all workers are where a file with this prior wishes; return as `placers.run`."""

    def candidate(job: ContendingJob, workers: int) -> Candidate:
        number = job.requested
        return Candidate(
            key=job.name, submitted_at=job.submitted_at, min_workers=number, max_workers=number, workers=workers
        )

    def places(starting: Sequence[ContendingJob]) -> list[Nodes]:
        family, runs = cluster.family, dict(cluster.running())
        held = {name: tuple(str(node) for node, n in each.nodes for _ in range(n)) for name, each in runs.items()}
        view = View(
            now=cluster.now,
            gpus=family.gpus,
            jobs=(
                *(candidate(cluster.jobs[name], each.gpus) for name, each in runs.items()),
                *(candidate(job, 0) for job in starting),
            ),
            nodes={str(node): family.node_gpus for node in range(family.nodes)},
            held=held,
        )
        allotments = [Allotment(job=job.key, workers=job.max_workers) for job in view.jobs]
        wished = {each.job: each.nodes for each in placed(prior, view, allotments, opening)}
        return [tuple(sorted((int(node), n) for node, n in Counter(wished[job.name]).items())) for job in starting]

    answer(cluster.bursts(), places)
    return cluster.mean_seconds


def played(family: Family, purpose: SeedSplit, count: int, prior: Prior, opening: float) -> list[float]:
    """Return the mean completion times of this number of episodes by wishes."""
    return [by_wishes(PlacementCluster(episode(family, purpose, index)), prior, opening) for index in range(count)]


def table(load: float, times: dict[str, list[float]]) -> Table:
    """Return the rows of one load."""
    rows = []
    for name, found in times.items():
        less = ["" if way == name else saved(times[way], found).text(".1f") for way in (WISHES, KEPT)]
        rows.append((name, f"{statistics.fmean(found):,.0f}", f"{statistics.median(found):,.0f}", *less))
    head = ("placed by", "mean, s", "median, s", f"saved by {WISHES}, %", f"saved by {KEPT}, %")
    return Table(f"Load {load:g}, {len(times[WISHES])} episodes", head, rows)


def run(options: argparse.Namespace) -> Parts:
    """Learn the prior, choose the cost of opening nodes, and give a table of the episodes to judge for each load."""
    # At the family's own load, as `espalier policies retrain --placement` does, which learns from 20 episodes, not 80.
    drawn = [episode(Family(), SeedSplit.TRAIN, index) for index in range(options.train)]
    prior = learn_prior(drawn, on_round=lambda turn, _: progress(f"prior, round {turn + 1} of 4"))
    families = {load: Family(load=load) for load in options.loads}
    means = {}
    for opening in (0.0, *OPENINGS):
        known = list(families.values())[:CHOSEN_BY]
        found = [statistics.fmean(played(each, SeedSplit.CHOOSE, options.choose, prior, opening)) for each in known]
        means[opening] = sum(found)
        progress(f"opening {opening:g}: " + ", ".join(f"{mean:,.0f} s" for mean in found))
    best = min(OPENINGS, key=lambda opening: means[opening])
    yield f"cost of opening: {best:g}"
    for load, family in families.items():
        times = {
            name: [
                placers.run(PlacementCluster(episode(family, SeedSplit.JUDGE, index)), placers.PlacementRule(rule))
                for index in range(options.judge)
            ]
            for name, rule in placers.RULES.items()
        }
        times[WISHES] = played(family, SeedSplit.JUDGE, options.judge, prior, 0.0)
        times[KEPT] = played(family, SeedSplit.JUDGE, options.judge, prior, best)
        yield table(load, times)
