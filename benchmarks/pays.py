"""Does growing pay? The same job without growth, with only the learning rate restarted, and grown, seed by seed.

python benchmarks/pays.py examples/digits.yaml [--seeds 10] [--arrive 30%] [--picture FILE] [--json FILE]

A GPU arrives at `--arrive` of the time budget. Three arms, in wall time, with the same seeds:
  not grown      mode Off
  restart only   where the agent would grow the model, only the learning-rate schedule begins again
  grown          on the advice of the default policy
An extra GPU does not make training faster here (it is a signal): what is compared is growing alone. Two runs go on at
a time, one thread each; the arms of a seed follow each other. Accuracies are those of the test split at the end.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import torch
from matplotlib.figure import Figure
from paying.advisors import DefaultPolicy
from paying.paired import Paired, paired

from espalier_api.events import EpochFinished
from espalier_api.job import AdaptiveTrainingJob
from espalier_api.validation import load_job
from espalier_cli.collect.clocks import WallScheduler
from espalier_cli.timeline import parse_moment
from espalier_trainer.core.run import Study
from espalier_trainer.core.services import Services
from espalier_trainer.data import load_data
from espalier_trainer.models import build_model
from espalier_trainer.randomness import seed_everything
from espalier_trainer.ready.trainer import Trainer
from espalier_trainer.report import MemoryReporter
from espalier_trainer.scheduler import Arrival

ARMS = ("not grown", "restart only", "grown")
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


def train(job: AdaptiveTrainingJob, arm: str, seed: int, arrive: float) -> Run:
    """Run one arm."""
    torch.set_num_threads(1)
    seed_everything(seed)
    training = job.spec.training
    data = load_data(training.dataset)
    reporter = MemoryReporter()
    result = Trainer(
        job,
        build_model(training.model, data.classes, data.example_input()),
        data,
        Services(
            WallScheduler(job.spec.time_budget_seconds, lambda _: 0.0, (Arrival(arrive, 2),)),
            reporter,
            advisor=None if arm == "not grown" else DefaultPolicy(),
        ),
        seed=seed,
        study=Study(restart_only=arm == "restart only"),
    ).run()
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
    )


def compare(runs: Sequence[Run], other: str) -> Paired:
    """Compare `grown` with `other`, seed by seed."""
    accuracy = {(run.arm, run.seed): run.accuracy for run in runs}
    seeds = sorted({run.seed for run in runs})
    return paired([accuracy["grown", seed] - accuracy[other, seed] for seed in seeds])


def draw(runs: Sequence[Run], job: AdaptiveTrainingJob, arrive: float, path: Path) -> None:
    """Draw mean validation accuracy over budget time, every seed thin behind it."""
    figure = Figure(figsize=(9, 4.2), layout="constrained")
    axes = figure.subplots()
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
    axes.axvline(arrive, color="#8d4b1f", lw=1, ls=":")
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
    axes.set_xlabel("time budget used (s)")
    axes.set_ylabel("validation accuracy")
    axes.legend(loc="lower right", frameon=False)
    axes.grid(alpha=0.25)
    figure.savefig(path, dpi=120)


def _at(curve: Sequence[tuple[float, float]], moment: float) -> float:
    """Return the mean of the last evaluations (a twentieth of the curve) before `moment`; 0.1 before the first."""
    before = [accuracy for used, accuracy in curve if used <= moment]
    window = max(1, len(curve) // 20)
    return statistics.fmean(before[-window:]) if before else 0.1


def main() -> None:
    """Run all arms and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", type=Path, nargs="?", default=Path("examples/digits.yaml"))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--arrive", default="30%")
    parser.add_argument("--time-budget", type=float, help="instead of spec.timeBudgetSeconds")
    parser.add_argument("--data", help="instead of spec.training.dataset.path")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    whole = load_job(arguments.job).model_dump(mode="json", by_alias=True, exclude_none=True)
    if arguments.time_budget:
        whole["spec"]["timeBudgetSeconds"] = arguments.time_budget
    if arguments.data:
        whole["spec"]["training"]["dataset"]["path"] = arguments.data
    job = AdaptiveTrainingJob.model_validate(whole)
    arrive = parse_moment(arguments.arrive, job.spec.time_budget_seconds)

    load_data(job.spec.training.dataset)  # what is downloaded or decoded is so once, before the clocks run
    runs: list[Run] = []
    with ProcessPoolExecutor(arguments.processes, mp_context=get_context("spawn")) as pool:
        waiting = [pool.submit(train, job, arm, seed, arrive) for seed in range(arguments.seeds) for arm in ARMS]
        for future in as_completed(waiting):
            run = future.result()
            runs.append(run)
            print(f"{len(runs)}/{len(waiting)}: seed {run.seed}, {run.arm}: {run.accuracy:.4f}", file=sys.stderr)

    runs.sort(key=lambda run: (run.seed, ARMS.index(run.arm)))
    comparisons = {other: compare(runs, other) for other in ARMS[:-1]}
    print(f"{job.metadata.name}: budget {job.spec.time_budget_seconds:g} s, a GPU arrives at {arrive:g} s\n")
    print("| seed | not grown | restart only | grown | the agent's decisions |")
    print("| ---: | ---: | ---: | ---: | --- |")
    for seed in range(arguments.seeds):
        by_arm = {run.arm: run for run in runs if run.seed == seed}
        cells = " | ".join(f"{by_arm[arm].accuracy:.3f}" for arm in ARMS)
        print(f"| {seed} | {cells} | {', '.join(by_arm['grown'].actions)} |")
    means = {arm: [run.accuracy for run in runs if run.arm == arm] for arm in ARMS}
    spread = {arm: statistics.stdev(values) if len(values) > 1 else 0.0 for arm, values in means.items()}
    print(
        "| mean ± std | "
        + " | ".join(f"{statistics.fmean(means[arm]):.3f} ± {spread[arm]:.3f}" for arm in ARMS)
        + " | |\n"
    )
    for other, result in comparisons.items():
        print(
            f"grown - {other}: {result.mean:+.3f} (95 % interval {result.low:+.3f} to {result.high:+.3f}), "
            f"better with {result.wins} of {result.count} seeds"
        )
    steps = {arm: statistics.median(run.steps for run in runs if run.arm == arm) for arm in ARMS}
    print("median optimizer steps: " + ", ".join(f"{arm} {steps[arm]:,.0f}" for arm in ARMS))
    print(
        f"{platform.machine()}, {arguments.processes} runs at a time, torch {torch.__version__}, "
        f"Python {platform.python_version()}"
    )
    if arguments.picture:
        draw(runs, job, arrive, arguments.picture)
    if arguments.json:
        shown = [
            {name: getattr(run, name) for name in ("arm", "seed", "accuracy", "depth", "steps", "actions")}
            for run in runs
        ]
        arguments.json.write_text(json.dumps(shown, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
