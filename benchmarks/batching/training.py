"""A run in which a step costs what a throughput model says, with one worker or two that train together."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch
from paying.training import prepare_process

from espalier_core.base import Record
from espalier_core.estimates.goodput import Throughput
from espalier_core.types.events import BatchSizeChanged, EpochFinished
from espalier_core.types.job import AdaptiveTrainingJob, BatchSizing
from espalier_core.validation.reading import with_spec
from espalier_lab.extra_worker import ExtraWorker, await_worker
from espalier_lab.virtual_run import ChargedScheduler, VirtualRun
from espalier_trainer.builtin_loop.trainer import Trainer
from espalier_trainer.elastic.step import StepPlan, StepResult
from espalier_trainer.elastic.team import Team
from espalier_trainer.measuring.speeds import LEAST_STEPS, NoiseSampling
from espalier_trainer.run.services import Services
from espalier_trainer.signals.report import MemoryReporter
from espalier_trainer.signals.scheduler import ReplicaChange, VirtualScheduler
from espalier_trainer.training.progress import TrainingResult

SGD: Final = {"name": "SGD", "learningRate": 0.05, "momentum": 0.9}
MOST: Final = 1024
EVERY_EPOCHS: Final = 4

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
    leader: Leader,
    result: TrainingResult,
    case: str,
    batch: BatchSizing,
    workers: int,
    seed: int,
    budget: float,
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
