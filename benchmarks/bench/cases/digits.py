"""Does growth pay? A job without growth, with only the learning rate restarted, and with growth, seed by seed.

A GPU arrives at `--arrive` of the time budget. Three arms, with the same seeds:
  not grown      mode Off
  restart only   where the agent would grow the model, only the learning-rate schedule restarts
  grown          on the advice of the default policy
An extra GPU does not make training faster here (it is only a signal), so the comparison is of growth alone. Two runs at
a time with one thread each; the arms of a seed run in sequence. Time is CPU time of the run, which other load does not
change; on free cores it is wall time. Accuracies are on the test split, at the end. Takes 6 minutes on two cores.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from bench.command import PICTURE, Option
from bench.printing import Parts, Table, progress
from bench.runs import OF_A_JOB, ShippedPolicy, example, job_of, run_all
from bench.statistics import Paired, mean_and_deviation, paired
from espalier_cli.run import parse_moment
from espalier_core.types.events import EpochFinished
from espalier_core.types.job import AdaptiveTrainingJob
from espalier_lab.virtual_run import WallScheduler, data_of
from espalier_lab.virtual_time import ReplicaChange
from espalier_trainer.builtin_loop.trainer import Trainer
from espalier_trainer.data import load_data
from espalier_trainer.models.zoo import build_model
from espalier_trainer.net2net.randomness import seed_everything
from espalier_trainer.run.growing import Study
from espalier_trainer.run.services import Services
from espalier_trainer.signals.report import MemoryReporter

ARMS = ("not grown", "restart only", "grown")
OPTIONS = {
    **OF_A_JOB,
    "job": Option(example("digits"), "file of the job"),
    "arrive": Option("30%", "of the budget"),
    "seeds": Option(10),
    "picture": PICTURE,
}
QUICK = {"seeds": 2, "time_budget": 3.0}
COLORS = {"not grown": "#757575", "restart only": "#1565c0", "grown": "#2e7d32"}


@dataclass(frozen=True, slots=True)
class Run:
    """One arm with one seed."""

    arm: str
    seed: int
    accuracy: float
    depth: int
    steps: int
    actions: tuple[str, ...]
    curve: tuple[tuple[float, float], ...]
    """Budget seconds and validation accuracy after each epoch."""
    layers: tuple[tuple[float, float], ...]
    """Budget seconds, and the depth from then on."""


def train(job: AdaptiveTrainingJob, arm: str, seed: int, arrive: float) -> Run:
    """Run one arm."""
    reporter, advisor = MemoryReporter(), None if arm == "not grown" else ShippedPolicy()
    budget, arrivals = job.spec.time_budget_seconds, (ReplicaChange(arrive, 2),)
    clock = WallScheduler(budget, lambda _: 0.0, arrivals, clock=time.process_time)
    data = data_of(job.spec.training.dataset)
    seed_everything(seed)
    model = build_model(job.spec.training.model, data.classes, data.example_input())
    study = Study(restart_only=arm == "restart only")
    result = Trainer(job, model, data, Services(clock, reporter, advisor=advisor), seed=seed, study=study).run()
    if result.test_accuracy is None:
        raise RuntimeError(f"{arm}, seed {seed}: ended with {result.reason}: {result.message}")
    epochs = [event for event in reporter.events if isinstance(event, EpochFinished)]
    return Run(
        arm,
        seed,
        result.test_accuracy,
        result.depth_after,
        result.steps,
        tuple(adaptation.action for adaptation in result.adaptations),
        tuple((event.used_seconds, event.validation_accuracy) for event in epochs),
        ((0.0, result.depth_before), *((each.used_seconds, each.depth_after) for each in result.adaptations)),
    )


def compare(runs: Sequence[Run], other: str) -> Paired:
    """Compare `grown` with `other`, seed by seed."""
    accuracy = {(run.arm, run.seed): run.accuracy for run in runs}
    seeds = sorted({run.seed for run in runs})
    return paired([accuracy["grown", seed] - accuracy[other, seed] for seed in seeds])


def draw(runs: Sequence[Run], job: AdaptiveTrainingJob, arrive: float, path: Path) -> None:
    """Draw mean validation accuracy and depth over budget time, with a thin line for every seed."""
    figure = Figure(figsize=(9, 5), layout="constrained")
    axes, layers = figure.subplots(2, 1, sharex=True, height_ratios=(4.2, 0.8))
    budget = job.spec.time_budget_seconds
    grid = [budget * (index + 1) / 100 for index in range(100)]
    for arm in ARMS:
        curves = [run.curve for run in runs if run.arm == arm]
        sampled = [[_at(curve, moment) for moment in grid] for curve in curves]
        for curve in sampled:
            axes.plot(grid, curve, color=COLORS[arm], lw=0.5, alpha=0.25)
        mean = [statistics.fmean(column) for column in zip(*sampled, strict=True)]
        test = statistics.fmean(run.accuracy for run in runs if run.arm == arm)
        axes.plot(grid, mean, color=COLORS[arm], lw=2, label=f"{arm}: {test:.3f} on the test split")
        depths = [[_last(run.layers, moment) for moment in grid] for run in runs if run.arm == arm]
        mean_depth = [statistics.fmean(column) for column in zip(*depths, strict=True)]
        layers.step(grid, mean_depth, where="post", color=COLORS[arm], lw=2 if arm == "grown" else 1)
    for each in (axes, layers):
        each.axvline(arrive, color="#8d4b1f", lw=1, ls=":")
        each.grid(alpha=0.25)
    axes.annotate(
        "a GPU arrives",
        (arrive, 0.03),
        xycoords=("data", "axes fraction"),
        rotation=90,
        ha="right",
        fontsize=8,
        color="#8d4b1f",
    )
    axes.set_xlim(0, budget)
    axes.set_ylabel("validation accuracy")
    axes.legend(loc="lower right", frameon=False)
    layers.set_xlabel("time budget used (s)")
    layers.set_ylabel("layers")
    layers.margins(y=0.25)
    layers.set_ylim(bottom=0)
    figure.savefig(path, dpi=120)


def _at(curve: Sequence[tuple[float, float]], moment: float) -> float:
    """Return the mean of the last evaluations (a twentieth of the curve) before `moment`; 0.1 before the first."""
    before = [accuracy for used, accuracy in curve if used <= moment]
    window = max(1, len(curve) // 20)
    return statistics.fmean(before[-window:]) if before else 0.1


def _last(steps: Sequence[tuple[float, float]], moment: float) -> float:
    """Return the value that a step line has at `moment`."""
    return [value for used, value in steps if used <= moment][-1]


def lowest(run: Run, arrive: float, budget: float) -> float:
    """Return the lowest validation accuracy in the 15 % of the budget after the GPU has come, less that before.

    Accuracies are means over an eightieth of the budget (0.25 s of 20 s); before, over a twentieth.
    """
    windows: dict[int, list[float]] = {}
    for used, accuracy in run.curve:
        if 0 < (share := (used - arrive) / budget) <= 0.15:
            windows.setdefault(int(80 * share), []).append(accuracy)
    before = [accuracy for used, accuracy in run.curve if -0.05 <= (used - arrive) / budget <= 0]
    return min(map(statistics.fmean, windows.values())) - statistics.fmean(before)


def run(options: argparse.Namespace) -> Parts:
    """Run all arms, and give the table."""
    job = job_of(options.job, options)
    budget = job.spec.time_budget_seconds
    arrive = parse_moment(options.arrive, budget)
    load_data(job.spec.training.dataset)  # downloads and decodes once, before the clocks run
    runs: list[Run] = []

    def done(count: str, run: Run) -> None:
        runs.append(run)
        progress(f"{count}: seed {run.seed}, {run.arm}: {run.accuracy:.4f}")

    seeds = range(options.seeds)
    run_all(train, [(job, arm, seed, arrive) for seed in seeds for arm in ARMS], options.processes, done)
    runs.sort(key=lambda run: (run.seed, ARMS.index(run.arm)))
    names = ("arm", "seed", "accuracy", "depth", "steps", "actions")
    yield {"runs": [{name: getattr(run, name) for name in names} for run in runs]}
    rows = []
    for seed in seeds:
        of_seed = [run for run in runs if run.seed == seed]
        rows.append([f"{seed}", *(f"{run.accuracy:.3f}" for run in of_seed), ", ".join(of_seed[-1].actions)])
    by_arm = {arm: [run for run in runs if run.arm == arm] for arm in ARMS}
    means = (mean_and_deviation([run.accuracy for run in found]) for found in by_arm.values())
    title = (
        f"{job.metadata.name}: budget {budget:g} s, a GPU arrives at {arrive:g} s, {options.processes} runs at a time"
    )
    yield Table(title, ["seed", *ARMS, "the agent's decisions"], [*rows, ["mean ± std", *means, ""]])
    for other in ARMS[:-1]:
        result = compare(runs, other)
        yield f"grown - {other}, 95 % interval: {result}, better with {result.wins} of {result.count} seeds"
    changes = {arm: [lowest(run, arrive, budget) for run in found] for arm, found in by_arm.items()}
    shown = ", ".join(f"{arm} {statistics.fmean(each):+.3f} ({min(each):+.3f})" for arm, each in changes.items())
    yield f"lowest validation accuracy after the GPU has come, less that before, mean (minimum): {shown}"
    steps = {arm: statistics.median(run.steps for run in found) for arm, found in by_arm.items()}
    yield "median optimizer steps: " + ", ".join(f"{arm} {count:,.0f}" for arm, count in steps.items())
    if options.picture:
        draw(runs, job, arrive, options.picture)
