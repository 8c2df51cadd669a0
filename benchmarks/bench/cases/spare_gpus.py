"""Who should grow? What lent GPUs gain under `value`, compared with rules that know less.

600 jobs of one GPU on 8 nodes with 8, through the operator's own planner with realistic latencies; budgets lognormal
(median 2,441 s, sigma .8, 600 to 14,400 s). Each can be lent a GPU to grow, as a model of the agent's outcome tables;
30 % gain nothing by it. Policies:
  fair         the oldest first; each keeps its loan until another needs it
  slices       who has been lent GPUs the least first, again each 600 s
  random       in random order, kept
  hands back   `value:predicts=false`: the oldest first, each until it can decide nothing more
  value        the highest bid first: the expected gain by GPU-second, as a share of what the job can still gain
Forecasts are what the seeds say by which a sequence of growths was chosen; gains are those of the seed left out. With
an error, each job's forecast is off by a normal error of so much accuracy. `gained` is the final accuracy gained on
average over all jobs, in percentage points; `lent` is GPU-hours lent a job. Differences are paired by seed, with 95 %
intervals (Student's t). Seeds are 100 and up: policies were made on others.

Takes 20 minutes.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Final

from bench.command import Option
from bench.printing import Parts, Table, progress
from bench.statistics import interval, paired
from espalier_lab.commands.simulation_sources import carried_curves
from espalier_lab.simulator.cluster import nodes_of
from espalier_lab.simulator.generate import generate
from espalier_lab.simulator.latencies import LATENCIES
from espalier_lab.simulator.outcome import outcome_of
from espalier_lab.simulator.planned import Planned
from espalier_operator.policies import Policy
from espalier_operator.policies.fair import served_before
from espalier_operator.policies.settings import configured
from espalier_operator.policies.view import Decision, Elasticity, Share, View

CLUSTER: Final = "8x8"
TRACE: Final = (
    "generate:poisson:jobs={jobs},load={load},median=2440.6,sigma=0.8,shortest=600,longest=14400,sizes=1,growing=1,"
    "fruitless=0.3,forecast_error={error}"
)
FIRST_SEED: Final = 100
SLICE_SECONDS: Final = 600.0
OPTIONS: Final = {
    "seeds": Option(5),
    "loads": Option([0.8, 0.9, 0.95]),
    "errors": Option([0.0, 0.05], "of forecasts, in accuracy"),
    "jobs": Option(600),
}
QUICK: Final = {"seeds": 2, "loads": [0.9], "errors": [0.0], "jobs": 100}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """All that are lent nothing wait in an order of their own: `random`, or by what they have been lent (`slices`)."""

    elasticity = Elasticity.FIXED
    name: str
    queue_order: str = "by age"
    seed: int = 0

    def decide(self, view: View) -> Decision:
        """Lend a GPU to the first of the order, as many as there are GPUs."""
        order = sorted(view.jobs, key=served_before)
        left = view.gpus - sum(job.min_workers for job in order)
        # Time is looked at in whole slices, so that nobody is overtaken within one.
        lent = dict(view.memory.get("lent", {}))
        since = view.now - view.memory.get("at", view.now)
        for job in order:
            if job.workers > job.min_workers:
                lent[job.key] = lent.get(job.key, 0.0) + since
        if self.name == "slices":
            rank = {job.key: (lent.get(job.key, 0.0) // SLICE_SECONDS, job.workers <= job.min_workers) for job in order}
        else:
            rank = {
                job.key: (job.workers <= job.min_workers, Random(f"{self.seed} {job.key}").random()) for job in order
            }
        able = (job for job in order if job.workers and job.max_workers > job.min_workers)
        first = sorted(able, key=lambda job: rank[job.key])[: max(0, left)]
        chosen = {job.key for job in first}
        shares = [Share(job=job.key, workers=job.min_workers + 1) for job in first]
        shares += [Share(job=job.key, workers=job.min_workers) for job in order if job.key not in chosen]
        return Decision(
            shares=tuple(shares),
            until=view.now + 60.0,
            follows_progress=True,
            memory={"lent": {job.key: lent.get(job.key, 0.0) for job in order}, "at": view.now},
        )


def policies(seed: int) -> dict[str, Policy]:
    """Return the policies by the name in the table."""
    return {
        "fair": configured("fair"),
        "random": Ranked(name="random", seed=seed),
        "slices": Ranked(name="slices"),
        "hands back": configured("value:predicts=false"),
        "value": configured("value"),
    }


_curves = cache(carried_curves)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is simulated."""

    load: float
    error: float
    jobs: int


def simulate(case: Case, name: str, seed: int) -> tuple[float, float]:
    """Return the accuracy gained in percentage points, and the GPU-hours lent, a job."""
    nodes = nodes_of(CLUSTER)
    gpus = sum(node.gpus for node in nodes)
    jobs = generate(TRACE.format(jobs=case.jobs, load=case.load, error=case.error), seed, gpus, _curves)
    Planned(jobs, nodes, policies(seed)[name], LATENCIES["realistic"]).run()
    found = outcome_of(jobs, gpus)
    return 100 * (found.accuracy_gained or 0.0), found.lent_gpu_hours or 0.0


def table(case: Case, found: dict[str, list[tuple[float, float]]]) -> Table:
    """Return the figures of a case."""
    best = [gained for gained, _ in found["value"]]
    rows = []
    for name, runs in found.items():
        gained = [gained for gained, _ in runs]
        less = (
            "" if name == "value" else str(paired([ours - theirs for ours, theirs in zip(best, gained, strict=True)]))
        )
        part = "" if name == "value" else f"{statistics.fmean(best) / statistics.fmean(gained):.2f}"
        rows.append((name, interval(gained, 2), f"{statistics.fmean(hours for _, hours in runs):.3f}", less, part))
    title = f"load {case.load:g}" + (f", forecasts off by {case.error:g}" if case.error else "")
    head = ("policy", "gained, points", "lent, h", "value minus it", "over it")
    return Table(title, head, rows)


def run(options: argparse.Namespace) -> Parts:
    """Simulate, and give a table for each load and error."""
    for error in options.errors:
        for load in options.loads:
            case = Case(load=load, error=error, jobs=options.jobs)
            found: dict[str, list[tuple[float, float]]] = {}
            for name in policies(0):
                found[name] = [simulate(case, name, FIRST_SEED + seed) for seed in range(options.seeds)]
                progress(f"load {load:g}, error {error:g}: {name}: {statistics.fmean(g for g, _ in found[name]):.2f}")
            yield table(case, found)
