"""Does distillation pay? GPUs of a grown model are reclaimed: keep it, return to the original, or distil a smaller one.

A GPU arrives at a fifth of the budget, the first block is deepened three times, and all GPUs train together, `--speed`
times as fast as one; at `--reclaim` the GPU is taken back. From then on, with the same weights, seeds and order of
examples:
  keep      train the grown model on one GPU: `onReclaim: Keep`
  return    train the model from before the growth, from its checkpoint
  weights   train a model of the original size with weights from the grown model, without a teacher
  distil    the same, with the grown model as teacher, whatever the result of the comparison after a quarter of the time
  rule      `onReclaim: Distill`: tried if the rule applies, kept if the comparison favours it

Time is virtual: a step costs the time measured for the model (once, at the beginning, or `--step-cost`), so results do
not depend on the machine's load. With `--dearer` 4 added layers cost four times their measured time, as in a larger
model. The teacher's forward and the comparison are counted, at their measured share of a step.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from matplotlib.figure import Figure

from bench.command import PICTURE, Option
from bench.printing import Parts, Table, progress
from bench.runs import OF_A_JOB, example, job_of, run_all
from bench.statistics import Paired, error_bars, mean_and_deviation, paired
from espalier_cli.run import parse_moment
from espalier_core.growth.architecture import Architecture
from espalier_core.types.advice import Action
from espalier_core.types.job import AdaptiveTrainingJob
from espalier_core.types.report import TrainerPhase
from espalier_lab.growth.collect.cost import StepCost, measure_cost, parse_cost
from espalier_lab.virtual_run import ChargedScheduler, VirtualRun, data_of, undisturbed
from espalier_lab.virtual_time import ReplicaChange, Scripted
from espalier_trainer.builtin_loop.trainer import Trainer
from espalier_trainer.checkpoints.document import Checkpoint
from espalier_trainer.data import load_data
from espalier_trainer.data.source import Data
from espalier_trainer.distillation import ShrinkRule, Teaching
from espalier_trainer.distillation.shrinking import Shrinker, ShrinkOptions
from espalier_trainer.models.zoo import build_model
from espalier_trainer.optimizers.building import build_optimizer
from espalier_trainer.run.growing import Study
from espalier_trainer.run.services import Services
from espalier_trainer.training.progress import TrainingResult

BUDGETS = {"digits": 6.0, "cifar8": 20.0}
"""Virtual seconds: the models are then trained, not over-trained."""
POINTS = ("block0", "block1", "block2")
COLORS = {"return": "#757575", "weights": "#1565c0", "distil": "#8d4b1f", "rule": "#2e7d32"}
OPTIONS = {
    **OF_A_JOB,
    "workload": Option("digits", choices=tuple(BUDGETS)),
    "seeds": Option(6),
    "first_seed": Option(0),
    "reclaim": Option(["50%", "80%"], "parts of the budget"),
    "dearer": Option([1.0, 8.0], "factors on the cost of added layers"),
    "speed": Option(3.0, "steps of all GPUs in the time of one GPU's step"),
    "step_cost": Option(None, "ms per step, and ms for one more layer at each block; default: measured", type=str),
    "forward_cost": Option(None, "cost of a forward, as a share of a step; default: measured", type=float),
    "picture": PICTURE,
}
QUICK = {"seeds": 1, "time_budget": 1.0, "step_cost": "2,1,1,1", "forward_cost": 0.3}


_ROUNDS, _STEPS = 7, 40


@dataclass(frozen=True, slots=True)
class Prices:
    """Of one study."""

    cost: StepCost
    dearer: float
    """Times as much as measured is what an added layer costs."""
    forward: float
    """A forward without gradients, as a share of a step."""
    speed: float
    """Of all GPUs together, in steps of one."""

    def step(self, architecture: Architecture | None) -> float:
        """Return the seconds of a step on one GPU."""
        return self.cost.base + self.dearer * (self.cost(architecture) - self.cost.base)


@dataclass
class Charged(ChargedScheduler):
    """Virtual time in which teaching and comparing are paid for."""

    prices: Prices | None = None
    batch: int = 1
    validation: int = 0
    """Examples."""
    trainer: Trainer | None = field(init=False, default=None)
    _asked_before: int = field(init=False, default=0)
    _tried: tuple[Architecture | None, Architecture | None] | None = field(init=False, default=None)

    def step_finished(self, architecture: Architecture | None) -> None:
        """Move time by a step, by the teacher's answers in it, and by a comparison that came before it."""
        shrinker = None if self.trainer is None else self.trainer.hooks
        if isinstance(shrinker, Shrinker) and self.prices is not None:
            if self._tried is not None and shrinker.kept is None:
                batches = self.validation / self.batch
                self.charge(batches * self.prices.forward * sum(map(self.prices.step, self._tried)))
                self._tried = None
            if shrinker.kept is not None:
                self._tried = (shrinker.kept.architecture, architecture)
            asked = 0 if shrinker.teacher is None else shrinker.teacher.asked
            if asked > self._asked_before and shrinker.kept is not None:
                share = (asked - self._asked_before) / self.batch * self.prices.forward
                self.charge(share * self.prices.step(shrinker.kept.architecture))
            self._asked_before = asked
        super().step_finished(architecture)


def forward_share(job: AdaptiveTrainingJob, data: Data) -> float:
    """Return what a forward without gradients costs of a step of the starting model; the fastest rounds count."""
    training = job.spec.training
    model = build_model(training.model, data.classes, data.example_input())
    inputs, labels = data.train.batch(torch.arange(min(training.batch_size, len(data.train))), None)
    optimizer = build_optimizer(training.optimizer, model)
    step = forward = math.inf
    for _ in range(_ROUNDS):
        model.train()
        began = time.perf_counter()
        for _ in range(_STEPS):
            optimizer.zero_grad(set_to_none=True)
            loss = torch.nn.functional.cross_entropy(model(inputs), labels)
            torch.autograd.backward(loss)
            optimizer.step()
        step = min(step, time.perf_counter() - began)
        model.eval()
        began = time.perf_counter()
        with torch.no_grad():
            for _ in range(_STEPS):
                model(inputs)
        forward = min(forward, time.perf_counter() - began)
    return forward / step


ARMS = ("keep", "return", "weights", "distil", "rule")
ARRIVAL = 0.2
"""Of the budget."""
GROWTHS = 3
_ALWAYS = ShrinkRule(slower=0.0, cheaper=0.0, least_steps=1)
"""Always tries, and the original size."""
MANNERS: dict[str, ShrinkOptions] = {
    "weights": ShrinkOptions(_ALWAYS, Teaching(weight=0.0), insist=True),
    "distil": ShrinkOptions(_ALWAYS, insist=True),
    "rule": ShrinkOptions(),
}


@dataclass(frozen=True, slots=True)
class Case:
    """A moment and its prices."""

    job: AdaptiveTrainingJob
    """The trunk's, without `onReclaim`."""
    reclaim: float
    """Budget seconds."""
    prices: Prices


@dataclass(frozen=True, slots=True)
class Run:
    """What an arm came to."""

    arm: str
    seed: int
    dearer: float
    reclaim: float
    accuracy: float
    """On the test split."""
    steps: int
    """After the reclaim."""
    depth: int
    reason: str
    """The reasons that the arm `rule` gave."""


def run_seed(case: Case, seed: int) -> list[Run]:
    """Run the trunk and all arms of one seed."""
    old, _ = _train(case, seed, None, "Keep", gone=False, stop_before_decision=0)
    at_reclaim, _ = _train(case, seed, old, "Distill", gone=False)
    runs = []
    for arm in ARMS:
        start = _returned(old, at_reclaim) if arm == "return" else at_reclaim
        on_reclaim = "Distill" if arm in MANNERS else "Keep"
        _, result = _train(case, seed, start, on_reclaim, gone=True, shrink_options=MANNERS.get(arm))
        if result.phase is not TrainerPhase.COMPLETED or result.test_accuracy is None:
            raise RuntimeError(f"{arm}, seed {seed}: ended with {result.reason}: {result.message}")
        decided = [each for each in result.adaptations if each.action == "Distill"]
        runs.append(
            Run(
                arm,
                seed,
                case.prices.dearer,
                case.reclaim,
                result.test_accuracy,
                result.steps - at_reclaim.state.step,
                result.depth_after,
                str(decided[0].reason) if decided else "",
            )
        )
    return runs


def _train(
    case: Case,
    seed: int,
    start: Checkpoint | None,
    on_reclaim: str,
    *,
    gone: bool,
    shrink_options: ShrinkOptions | None = None,
    stop_before_decision: int | None = None,
) -> tuple[Checkpoint, TrainingResult]:
    """Train from a checkpoint; to the reclaim, or if the GPUs are `gone` to the end. Returns the last checkpoint."""
    job = undisturbed(
        case.job,
        training={"weightAveraging": 0.0},
        adaptation={"mode": "Auto", "maxAdaptations": GROWTHS, "onReclaim": on_reclaim},
    )
    data = data_of(job.spec.training.dataset)
    budget, base = job.spec.time_budget_seconds, job.spec.min_replicas
    arrivals = [ReplicaChange(ARRIVAL * budget, base + 1)]
    if gone:
        arrivals.append(ReplicaChange(case.reclaim, base))
    prices = case.prices
    scheduler = Charged(
        budget,
        prices.step,
        arrivals,
        base,
        speedup=lambda replicas: prices.speed if replicas > base else 1.0,
        prices=None if shrink_options is None or shrink_options.teaching.weight == 0 else prices,
        batch=job.spec.training.batch_size,
        validation=len(data.validation),
    )
    run = VirtualRun(
        job=job,
        seed=seed,
        services=Services(scheduler, advisor=Scripted((Action.deepen("block0"),) * GROWTHS)),
        start=None if start is None else start.copied(),
        stop_at=math.inf if gone else case.reclaim,
        study=Study(stop_before_decision=stop_before_decision),
        shrink_options=shrink_options,
    ).begin()
    scheduler.trainer = run.trainer
    finished = run.train()
    if finished.checkpoint is None:
        raise RuntimeError(f"seed {seed}: no checkpoint at {scheduler.used_seconds():g} s: {finished.result.message}")
    return finished.checkpoint.copied(), finished.result


def _returned(old: Checkpoint, now: Checkpoint) -> Checkpoint:
    """Return the model of before its growth, at the present time, with nothing more to decide."""
    names = ("epoch", "step", "cursor", "epoch_loss_sum", "used_seconds", "schedule", "consultations")
    state = old.state.model_copy(update={name: getattr(now.state, name) for name in names})
    return Checkpoint(state, old.model, old.training)


def difference(runs: Sequence[Run], arm: str) -> Paired:
    """Compare the accuracy of an arm with that of `keep`, seed by seed; all runs are of one case."""
    accuracy = {(run.arm, run.seed): run.accuracy for run in runs}
    return paired([accuracy[arm, run.seed] - run.accuracy for run in runs if run.arm == "keep"])


def cases(runs: Sequence[Run]) -> list[tuple[tuple[float, float], list[Run]]]:
    """Return the runs of each (dearer, reclaim), in order."""
    keys = sorted({(run.dearer, run.reclaim) for run in runs})
    return [(key, [run for run in runs if (run.dearer, run.reclaim) == key]) for key in keys]


def table(runs: Sequence[Run], title: str, budget: float) -> Table:
    """Return accuracies, and differences to `keep` with intervals."""
    rows = []
    for (dearer, reclaim), found in cases(runs):
        for arm in ARMS:
            own = [run for run in found if run.arm == arm]
            steps = statistics.median(run.steps for run in own)
            gain = difference(found, arm)
            less = ["", ""] if arm == "keep" else [str(gain), f"{gain.wins} of {gain.count}"]
            accuracy = mean_and_deviation([run.accuracy for run in own])
            rows.append([f"x{dearer:g}", f"{reclaim / budget:.0%}", arm, accuracy, *less, f"{steps:,.0f}"])
        reasons = Counter(run.reason for run in found if run.arm == "rule")
        reasons_text = ", ".join(f"{reason} {count}" for reason, count in sorted(reasons.items()))
        rows.append(["", "", "decision of `rule`", reasons_text, "", "", ""])
    head = ["added layers cost", "reclaim at", "arm", "accuracy", "less `keep` (95 %)", "better with", "steps after"]
    return Table(title, head, rows)


def draw(runs: Sequence[Run], workload: str, budget: float, path: Path) -> None:
    """Draw each arm's paired differences to `keep`: seeds as dots, the mean with its interval."""
    found = cases(runs)
    figure = Figure(figsize=(2.3 * len(found) + 1, 3.8), layout="constrained")
    panels = figure.subplots(1, len(found), sharey=True, squeeze=False)[0]
    for axes, ((dearer, reclaim), own) in zip(panels, found, strict=True):
        base = {run.seed: run.accuracy for run in own if run.arm == "keep"}
        for place, arm in enumerate(ARMS[1:]):
            gain = difference(own, arm)
            dots = [run.accuracy - base[run.seed] for run in own if run.arm == arm]
            axes.plot([place] * len(dots), dots, ".", color=COLORS[arm], alpha=0.35, ms=5)
            axes.errorbar(place, gain.mean, error_bars([gain]), fmt="o", color=COLORS[arm], capsize=4)
        axes.axhline(0, color="black", lw=0.8)
        axes.set_xticks(range(len(ARMS) - 1), ARMS[1:], rotation=40, ha="right")
        axes.set_title(f"added layers x{dearer:g}\nreclaim at {reclaim / budget:.0%}", fontsize=9)
        axes.grid(axis="y", alpha=0.25)
    panels[0].set_ylabel(f"{workload}: test accuracy less `keep`")
    figure.savefig(path, dpi=120)


def run(options: argparse.Namespace) -> Parts:
    """Run all arms, and give the table."""
    options.time_budget = budget = options.time_budget or BUDGETS[options.workload]
    job = job_of(example(options.workload), options)
    data = load_data(job.spec.training.dataset)
    cost = (
        parse_cost(options.step_cost, POINTS)
        if options.step_cost
        else measure_cost(job, data, POINTS, torch.device("cpu"))
    )
    forward = options.forward_cost or forward_share(job, data)
    progress(f"{cost}; a forward alone costs {forward:.2f} of a step")
    moments = [
        Case(job, parse_moment(moment, budget), Prices(cost, dearer, forward, options.speed))
        for dearer in options.dearer
        for moment in options.reclaim
    ]
    runs: list[Run] = []
    seeds = range(options.first_seed, options.first_seed + options.seeds)

    def done(count: str, found: list[Run]) -> None:
        runs.extend(found)
        reached = ", ".join(f"{run.arm} {run.accuracy:.3f}" for run in found)
        progress(f"{count}: seed {found[0].seed}, x{found[0].dearer:g}, reclaim at {found[0].reclaim:g} s: {reached}")

    # Seed by seed, so that the seeds that are done have all cases.
    run_all(run_seed, [(case, seed) for seed in seeds for case in moments], options.processes, done)
    runs.sort(key=lambda run: (run.dearer, run.reclaim, run.seed, ARMS.index(run.arm)))
    yield {"runs": [asdict(run) for run in runs]}
    title = f"{options.workload}: budget {budget:g} s, {cost}, together {options.speed:g} times as fast"
    yield table(runs, title, budget)
    if options.picture:
        draw(runs, options.workload, budget, options.picture)
