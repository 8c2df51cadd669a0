"""Does a batch size that follows goodput pay? `batch: Goodput` compared with `Fixed`: same data, seeds and budget.

The example's network and data (examples/digits.yaml, never grown), one worker and two that train together, in runs of
the ready trainer. Time is virtual: a step costs what the throughput model says for its examples, passes and workers,
so nothing depends on what else the machine does. Cases:
  cpu     the costs of this machine: measured first, by one process and by two over gloo on the loopback interface
  device  assumed: 10 ms a step and 10 µs an example, 5 ms for an exchange; a device on which 64 examples are few
  sgd     the same device, with SGD (momentum .9, rate .05), for which AdaScale was made, in place of Adam
Two workers are real: a second process takes part in each step. Evaluations are free, and so are the estimates of the
gradient noise, which cost 1 % of the steps at most.

`loss` and `accuracy` are those on the test split at the end of the budget. `time to target` is the share of the budget
after which the validation loss was first as low as the largest final one among the runs with `Fixed` of this case and
number of workers; runs that never got there count as 1. `difference` is Goodput minus Fixed with the same seed: the
mean with its 95 % interval (Student's t). `size` is the mean over steps of the batch, `changes` how often it changed.

Takes 15 minutes.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch

from bench.command import BenchError, Option
from bench.printing import Parts, Table, progress
from bench.runs import OF_A_JOB, example, job_of, prepare_process, run_all
from bench.statistics import paired
from espalier_core.base import Record
from espalier_core.estimates.goodput import Throughput, fitted, step_times
from espalier_core.types.events import BatchSizeChanged, EpochFinished
from espalier_core.types.job import AdaptiveTrainingJob, BatchSizing
from espalier_core.types.measurements import Measurements
from espalier_core.validation.reading import with_spec
from espalier_lab.extra_worker import ExtraWorker, await_worker
from espalier_lab.virtual_run import ChargedScheduler, VirtualRun, WallScheduler
from espalier_lab.virtual_time import ReplicaChange, VirtualScheduler
from espalier_trainer.builtin_loop.trainer import Trainer
from espalier_trainer.elastic.step import StepPlan, StepResult
from espalier_trainer.elastic.team import Team
from espalier_trainer.measuring.speeds import LEAST_STEPS, NoiseSampling
from espalier_trainer.run.services import Services
from espalier_trainer.signals.report import MemoryReporter
from espalier_trainer.training.progress import TrainingResult

DEVICE: Final = Throughput(alpha_compute=0.01, beta_compute=0.00001, alpha_local=0.005)
MEASURED_SIZES: Final = (64, 256, 1024)
ROUNDS: Final = 3
SGD: Final = {"name": "SGD", "learningRate": 0.05, "momentum": 0.9}
MOST: Final = 1024
EVERY_EPOCHS: Final = 4
CASES: Final = ("cpu", "device", "sgd")
OPTIONS: Final = {
    **OF_A_JOB,
    "time_budget": Option(3.0, "of the case `cpu`; the others have five times as much"),
    "processes": Option(1, "runs at a time"),
    "seeds": Option(6),
    "cases": Option(list(CASES), choices=CASES),
    "workers": Option([1, 2], choices=(1, 2)),
}
QUICK: Final = {"seeds": 2, "time_budget": 0.6, "cases": ["device"], "workers": [1]}

_extra: list[ExtraWorker] = []
"""Of this process; it ends with it."""


class Run(Record):
    """What a run came to."""

    case: str
    batch: BatchSizing
    workers: int
    seed: int
    accuracy: float
    loss: float
    epochs: int
    steps: int
    sizes: tuple[int, ...]
    """The batch sizes, one after the other."""
    mean_size: float
    validation: tuple[tuple[float, float], ...]
    """Shares of the budget, and the loss on the validation split then."""

    def reached(self, target: float) -> float:
        """Return the share of the budget after which the validation loss was `target` or less."""
        return next((used for used, loss in self.validation if loss <= target), 1.0)


class Clock(ChargedScheduler):
    """Time that passes by what steps cost."""

    def step_finished(self, architecture: Any) -> None:
        """Nothing: it was charged."""


class EveryTenth(NoiseSampling):
    """Estimates the noise as often as a step is long enough to pay for it."""

    def due(self, after: int = 0) -> bool:
        """Return whether to measure now, or in `after` more steps."""
        return self._steps + after >= LEAST_STEPS


@dataclass
class Leader:
    """A trainer with its team."""

    trainer: Trainer
    reporter: MemoryReporter
    took: list[int] = field(default_factory=list)
    """Examples of each step."""


def led(stack: ExitStack, job: AdaptiveTrainingJob, scheduler: VirtualScheduler, workers: int, seed: int) -> Leader:
    """Return the trainer of a job, once its second worker is there."""
    teams: list[Team] = []
    team: Callable[[Any], Team] | None = None
    if workers > 1:
        if not _extra:
            _extra.append(ExtraWorker())
        place = stack.enter_context(_extra[0].following(job, seed))

        def team(journal: Any) -> Team:
            # It looks for its members at each step boundary: steps take no real time here.
            found = Team(place, torch.device("cpu"), journal.warn, journal.workers_changed, listen_seconds=0.0)
            teams.append(found)
            return found

    reporter = MemoryReporter()
    services = Services(scheduler, reporter, team=team)
    if isinstance(scheduler, Clock):
        services = replace(services, clock=scheduler.used_seconds)
    trainer = VirtualRun(job=job, seed=seed, services=services).begin().trainer
    for each in teams:
        await_worker(each)
    return Leader(trainer, reporter)


def train(job: AdaptiveTrainingJob, case: str, cost: Throughput, batch: BatchSizing, workers: int, seed: int) -> Run:
    """Train one run in virtual time."""
    prepare_process()
    training = {
        "batch": batch.value,
        "maxBatchSize": MOST,
        "elasticBatch": "keepGlobal" if workers > 1 else None,
        "evaluateEveryEpochs": EVERY_EPOCHS,
        "optimizer": SGD if case == "sgd" else None,
    }
    job = with_spec(job, adaptation={"mode": "Off"}, training=training)
    clock = Clock(job.spec.time_budget_seconds, lambda _: 0.0, (ReplicaChange(0, workers),))
    with ExitStack() as stack:
        leader = led(stack, job, clock, workers, seed)
        _charge(leader, clock, cost)
        result = leader.trainer.run()
    return _run_of(leader, result, case, batch, workers, seed, job.spec.time_budget_seconds)


def _charge(leader: Leader, clock: Clock, cost: Throughput) -> None:
    """Let each step of the leader cost what it costs."""
    run = leader.trainer._run
    compute_together, meter = run.compute_step, run.meter
    meter._sampling = EveryTenth()

    def together(due: StepPlan, compute: Any) -> StepResult:
        joint = compute_together(due, compute)
        world = 1 if due.group is None else due.group.world
        share, passes = joint.examples / world, due.portion.passes
        clock.charge(cost.step_seconds(1, world, share, passes))
        leader.took.append(joint.examples)
        if meter._joint is not None:
            meter._joint = replace(joint, sync_seconds=cost.sync_seconds(1, world))
        return joint

    run.compute_step = together  # type: ignore[method-assign]


def _run_of(
    leader: Leader, result: TrainingResult, case: str, batch: BatchSizing, workers: int, seed: int, budget: float
) -> Run:
    if result.test_accuracy is None or result.test_loss is None:
        raise RuntimeError(f"{case}, {batch}, {workers} workers, seed {seed}: {result.reason}: {result.message}")
    events = leader.reporter.events
    changed = [event.batch_size for event in events if isinstance(event, BatchSizeChanged)]
    return Run(
        case=case,
        batch=batch,
        workers=workers,
        seed=seed,
        accuracy=result.test_accuracy,
        loss=result.test_loss,
        epochs=result.epochs,
        steps=result.steps,
        sizes=(leader.trainer._training.batch_size, *changed),
        mean_size=statistics.fmean(leader.took),
        validation=tuple(
            (event.used_seconds / budget, event.validation_loss) for event in events if isinstance(event, EpochFinished)
        ),
    )


def measured(job: AdaptiveTrainingJob) -> Throughput:
    """Return what steps cost on this machine: of the rounds, the fastest counts."""
    prepare_process()
    best: dict[tuple[int, int], Any] = {}
    for _ in range(ROUNDS):
        for workers in (1, 2):
            for size in MEASURED_SIZES:
                training = {"batchSize": size, "elasticBatch": "keepGlobal" if workers > 1 else None}
                short = with_spec(job, timeBudgetSeconds=1.5, adaptation={"mode": "Off"}, training=training)
                scheduler = WallScheduler(1.5, lambda _: 0.0, (ReplicaChange(0, workers),))
                with ExitStack() as stack:
                    leader = led(stack, short, scheduler, workers, 0)
                    leader.trainer.run()
                report = leader.reporter.report
                found = () if report is None else report.measurements.speeds
                for speed in found:
                    key = speed.workers, speed.batch_size
                    if speed.workers == workers and (key not in best or speed.step_seconds < best[key].step_seconds):
                        best[key] = speed
    for speed in best.values():
        progress(
            f"{speed.workers} workers, {speed.batch_size} examples each: a step of {1000 * speed.step_seconds:.2f} ms, "
            f"exchange {1000 * speed.sync_seconds:.2f} ms"
        )
    model = fitted(step_times(Measurements(speeds=tuple(best.values()))))
    if model is None:
        raise BenchError("no step was measured; give the machine some rest")
    return model


def rows(runs: Sequence[Run]) -> Iterator[list[str]]:
    """Yield the rows of the table."""
    for case, workers in sorted({(run.case, run.workers) for run in runs}):
        alike = [run for run in runs if (run.case, run.workers) == (case, workers)]
        by_arm = {
            arm: sorted((run for run in alike if run.batch is arm), key=lambda run: run.seed) for arm in BatchSizing
        }
        fixed, goodput = by_arm[BatchSizing.FIXED], by_arm[BatchSizing.GOODPUT]
        target = max(run.validation[-1][1] for run in fixed)
        for arm, found in by_arm.items():
            yield [
                f"{case}, {workers}",
                arm.value,
                f"{statistics.fmean(run.accuracy for run in found):.4f}",
                f"{statistics.fmean(run.loss for run in found):.3f}",
                f"{statistics.fmean(run.reached(target) for run in found):.2f}",
                f"{statistics.fmean(run.mean_size for run in found):.0f}",
                f"{statistics.fmean(len(run.sizes) - 1 for run in found):.1f}",
                f"{statistics.fmean(run.epochs for run in found):.0f}",
            ]
        pairs = list(zip(fixed, goodput, strict=True))
        yield [
            "",
            "difference",
            _between([other.accuracy - one.accuracy for one, other in pairs], 4),
            _between([other.loss - one.loss for one, other in pairs], 3),
            _between([other.reached(target) - one.reached(target) for one, other in pairs], 2),
            *[""] * 3,
        ]


def _between(differences: Sequence[float], places: int) -> str:
    return paired(differences).text(f"+.{places}f")


def run(options: argparse.Namespace) -> Parts:
    """Measure, train, and give the table."""
    job = job_of(example("digits"), options)
    costs = {case: measured(job) if case == "cpu" else DEVICE for case in options.cases}
    for case, cost in costs.items():
        progress(f"{case}: {cost}")
    runs: list[Run] = []

    def done(place: str, run: Run) -> None:
        runs.append(run)
        progress(
            f"{place} {run.case}, {run.workers} workers, {run.batch}, seed {run.seed}: accuracy {run.accuracy:.4f}, "
            f"{run.steps} steps, sizes {' '.join(map(str, run.sizes))}"
        )

    longer = with_spec(job, timeBudgetSeconds=5 * job.spec.time_budget_seconds)
    calls = [
        (job if case == "cpu" else longer, case, costs[case], arm, workers, seed)
        for seed in range(options.seeds)
        for case in options.cases
        for workers in options.workers
        for arm in BatchSizing
    ]
    run_all(train, calls, options.processes, done)
    yield {"runs": [run.model_dump(mode="json") for run in runs]}
    head = ["case, workers", "batch", "accuracy", "loss", "time to target", "size", "changes", "epochs"]
    title = f"{options.seeds} seeds, {options.time_budget:g} s of this CPU, five times as much of the device"
    yield Table(title, head, list(rows(runs)))
