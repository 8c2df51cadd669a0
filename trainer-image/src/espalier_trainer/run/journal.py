"""Reports and events of a run."""

from __future__ import annotations

import logging
import math
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypedDict

from espalier_core.types.advice import Action
from espalier_core.types.events import (
    AdaptationFinished,
    BatchSizeChanged,
    CheckpointSaved,
    EpochFinished,
    TrainerFinished,
    TrainerStarted,
    TrialsStarted,
    TrialStarted,
    Warned,
    WorkersChanged,
)
from espalier_core.types.measurements import Measurements
from espalier_core.types.reasons import Reason
from espalier_core.types.report import (
    BATCH_METRIC,
    RATE_FACTOR_METRIC,
    WORKERS_METRIC,
    Adaptation,
    Report,
    TrainerPhase,
)
from espalier_core.types.task import accuracy_of, other_than_accuracy
from espalier_trainer.data.objective import Evaluation
from espalier_trainer.growth.consultation import Consultation
from espalier_trainer.run.batching import Resized
from espalier_trainer.signals.report import Reporter
from espalier_trainer.signals.scheduler import Scheduler
from espalier_trainer.training.network import Network
from espalier_trainer.training.progress import Ending, RunProgress

logger = logging.getLogger(__name__)


class _Stamp(TypedDict):
    time: datetime
    used_seconds: float


class _ModelFields(TypedDict):
    step: int
    depth: int
    parameters: int


@dataclass
class RunJournal:
    """Reports and events about the state of training: `network` and `progress`."""

    job: str
    scheduler: Scheduler
    reporter: Reporter
    network: Network
    progress: RunProgress
    incarnation: str = ""
    """Name of the process start; generated if empty."""
    attempt: int | None = None
    """Number of times that the leader was replaced before; None if unknown."""
    phase: TrainerPhase = TrainerPhase.STARTING
    acknowledged: int = 0
    last_checkpoint: datetime | None = None
    ending: Ending | None = None
    cannot_grow: str = ""
    """Reason why the model cannot grow; empty if it can, or if growth is not requested."""
    grows: bool = True
    """Whether the model can grow at all, or growth is not requested."""
    measured: Callable[[], Measurements] = Measurements
    """Returns the measurements of the run so far."""

    def __post_init__(self) -> None:
        self.incarnation = self.incarnation or uuid.uuid4().hex

    def enter(self, phase: TrainerPhase) -> None:
        """Change the phase and report it at once."""
        self.phase = phase
        self.report(urgent=True)

    def report(self, *, urgent: bool = False) -> None:
        """Publish a report, if it is due or urgent."""
        self.reporter.publish(self._report, urgent=urgent)

    def acknowledge(self, generation: int) -> bool:
        """Acknowledge an allocation by repeating its generation; return whether it is a new one."""
        if generation == self.acknowledged:
            return False
        self.acknowledged = generation
        self.report(urgent=True)
        return True

    def warn(self, reason: str, message: str) -> None:
        """Report a problem that does not stop training."""
        logger.warning("%s: %s", reason, message)
        self.reporter.record(Warned(**self._stamp(), reason=reason, message=message))

    def started(self, resumed: bool, device: str) -> None:
        """Report that training begins: the time budget runs from now on."""
        self.reporter.record(
            TrainerStarted(
                **self._stamp(),
                **self._standing(),
                incarnation=self.incarnation,
                resumed=resumed,
                epoch=self.progress.epoch,
                device=device,
            )
        )
        self.enter(TrainerPhase.TRAINING)

    def epoch_finished(self, train_loss: float, evaluation: Evaluation, max_step_gap: float) -> None:
        """Report an epoch and the evaluation after it."""
        progress = self.progress
        if math.isfinite(evaluation.loss):
            self.reporter.record(
                EpochFinished(
                    **self._stamp(),
                    **self._standing(),
                    # Reported before the epoch is counted: code that a loop runs after its batches belongs to it.
                    epoch=progress.epoch + (progress.cursor > 0),
                    train_loss=train_loss,
                    validation_loss=evaluation.loss,
                    validation_accuracy=accuracy_of(evaluation.score),
                    validation_score=other_than_accuracy(evaluation.score),
                    learning_rate=progress.metrics.get("learning_rate", 0.0),
                    max_step_gap_seconds=max_step_gap,
                )
            )
        self.report()

    def adapted(self, adaptation: Adaptation, problem: tuple[Reason, str] | None) -> None:
        """Report the result of a consultation."""
        if problem is not None:
            self.warn(*problem)
        self.reporter.record(AdaptationFinished(**self._stamp(), adaptation=adaptation))
        logger.info(
            "%s by %s: %s; depth %d to %d",
            adaptation.action,
            adaptation.policy,
            adaptation.result,
            adaptation.depth_before,
            adaptation.depth_after,
        )

    def trial_started(self, network: Network, seconds: float) -> None:
        """Report the beginning of a trial of a smaller model, for `seconds` of the budget."""
        self.reporter.record(TrialStarted(**self._stamp(), **self._standing(network), seconds=seconds))
        self.report(urgent=True)

    def trials_started(self, actions: Sequence[Action], workers: int, seconds: float) -> None:
        """Report the beginning of trials of `actions` on `workers` extra workers, for `seconds` of wall time each."""
        tried = tuple(str(action) for action in actions)
        self.reporter.record(TrialsStarted(**self._stamp(), actions=tried, workers=workers, seconds=seconds))
        self.report(urgent=True)

    def workers_changed(self, workers: int, seconds: float) -> None:
        """Report that `workers` workers train together, after a pause of `seconds`."""
        self.progress.metrics[WORKERS_METRIC] = workers
        self.reporter.record(WorkersChanged(**self._stamp(), workers=workers, seconds=seconds))
        self.report(urgent=True)

    def batch_changed(self, changed: Resized, workers: int, factor: float, message: str = "") -> None:
        """Report another batch size, with its factor of the learning rate."""
        self.progress.metrics |= {BATCH_METRIC: changed.after, RATE_FACTOR_METRIC: factor}
        noise = self.measured().gradient
        self.reporter.record(
            BatchSizeChanged(
                **self._stamp(),
                before=changed.before,
                batch_size=changed.after,
                passes=changed.passes,
                workers=workers,
                goodput=changed.expected,
                learning_rate_factor=factor,
                noise_scale=None if noise is None else noise.noise_scale,
                message=message,
            )
        )
        self.report(urgent=True)

    def saved(self, path: str, step: int, seconds: float) -> None:
        """Report that the checkpoint of a step, which took `seconds` to write, is complete."""
        stamp = self._stamp()
        self.last_checkpoint = stamp["time"]
        self.reporter.record(CheckpointSaved(**stamp, path=path, step=step, seconds=seconds))

    def over(self, ending: Ending) -> None:
        """Report that training is over and the last checkpoint is written; the script's own code may still run."""
        self.ending = ending
        self.report(urgent=True)

    def finished(self, ending: Ending, test: Evaluation | None) -> None:
        """Report the end of the run."""
        progress = self.progress
        score = None if test is None or not math.isfinite(test.score.value) else test.score
        if test is not None and math.isfinite(test.loss):
            progress.metrics |= test.named("test")
        # A user's own loop has no evaluation by the trainer, but may have reported figures.
        reported = progress.metric_tuple() if ending.phase is TrainerPhase.COMPLETED and test is None else ()
        scores = {each.name: each.value for each in reported}
        self.ending = ending
        self.reporter.record(
            TrainerFinished(
                **self._stamp(),
                **self._standing(),
                phase=ending.phase,
                reason=ending.reason,
                message=ending.message,
                epoch=progress.epoch,
                test_accuracy=scores.get("test_accuracy") if test is None else accuracy_of(score),
                test_score=other_than_accuracy(score),
                test_loss=scores.get("test_loss") if test is None or not math.isfinite(test.loss) else test.loss,
                max_step_gap_seconds=progress.max_step_gap_seconds,
            )
        )
        self.enter(ending.phase)

    def _stamp(self) -> _Stamp:
        return {"time": datetime.now(UTC), "used_seconds": self.scheduler.used_seconds()}

    def _standing(self, network: Network | None = None) -> _ModelFields:
        network = network or self.network
        return {"step": self.progress.step, "depth": network.depth, "parameters": network.parameters}

    def _report(self) -> Report:
        stamp, progress = self._stamp(), self.progress
        return Report(
            **self._standing(),
            job=self.job,
            incarnation=self.incarnation,
            attempt=self.attempt,
            acknowledged_generation=self.acknowledged,
            phase=self.phase,
            reason=None if self.ending is None else self.ending.reason,
            message="" if self.ending is None else self.ending.message,
            epoch=progress.epoch,
            used_seconds=stamp["used_seconds"],
            progress_percentage=min(100, int(100 * stamp["used_seconds"] / self.scheduler.time_budget())),
            metrics=progress.metric_tuple(),
            cannot_grow=self.cannot_grow,
            grows=self.grows,
            consultations=progress.consultations,
            adaptations=tuple(progress.adaptations),
            measurements=self.measured(),
            last_checkpoint_time=self.last_checkpoint,
            updated_time=stamp["time"],
        )


@dataclass
class LossJump:
    """Measures the loss jump after an inexact growth where only training steps compute the loss.

    The losses are those of the steps before and after it: on different examples, with the weights of each moment.

    A consultation is reported at once, or with the next step where that computes the loss after it. Its adaptation is
    the last of `adaptations`, the run's list.
    """

    journal: RunJournal
    _last: float | None = None
    """Loss of the last step; None if it was not finite."""
    _before: float | None = None
    """Loss of the last step before a growth; None while no loss after one is awaited."""
    _unreported: Consultation | None = None

    def settled(self, consultation: Consultation, adaptations: list[Adaptation]) -> None:
        """Report a consultation, now or with the next step."""
        self._unreported = consultation
        known = consultation.adaptation.loss_after is not None
        self._before = self._last if consultation.inexact and not known else None
        if self._before is None:
            self.report(adaptations)

    def stepped(self, loss: float, adaptations: list[Adaptation]) -> bool:
        """Record the loss at the beginning of a step; return whether it was the first after a growth."""
        before, self._before = self._before, None
        self._last = loss if math.isfinite(loss) else None
        jumped = before is not None and bool(adaptations)
        if jumped and self._unreported is not None:
            adaptations[-1] = adaptations[-1].model_copy(update={"loss_before": before, "loss_after": self._last})
        self.report(adaptations)
        return jumped

    def report(self, adaptations: list[Adaptation]) -> None:
        """Report the unreported consultation with its present values."""
        unreported, self._unreported = self._unreported, None
        if unreported is not None:
            self.journal.adapted(adaptations[-1], unreported.problem)
