"""Progress of a run, which is reported, checkpointed and resumed; and the reason why a run ends.

A failure is reported with its cause in one sentence, and with whether the same start would fail again.
"""

from __future__ import annotations

import errno
import math
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from torch.distributed import DistError

from espalier_core.causes import cause_in, place_in
from espalier_core.types.advice import MAX_CURVE, CurvePoint
from espalier_core.types.allocation import Allocation
from espalier_core.types.environment import ExitCode
from espalier_core.types.reasons import Reason
from espalier_core.types.report import Adaptation, Metric, TrainerPhase
from espalier_core.types.task import Score, accuracy_of, score_in
from espalier_trainer.data.objective import Evaluation
from espalier_trainer.errors import LossNotFiniteError, TrainerError
from espalier_trainer.training.network import Network


@dataclass
class RunProgress:
    """All state of a run except tensors and clocks."""

    depth_before: int
    parameters_before: int
    epoch: int = 0
    """Number of epochs finished."""
    step: int = 0
    cursor: int = 0
    """Number of batches of the current epoch already trained on."""
    epoch_loss_sum: float = 0.0
    consultations: int = 0
    adaptations: list[Adaptation] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    """Latest figures by name."""
    max_step_gap_seconds: float = 0.0
    """Longest wall seconds between the ends of two optimizer steps, of all incarnations, without time between them."""
    curve: tuple[CurvePoint, ...] = ()
    """Evaluations so far, ascending: every one, or every 2nd, 4th, ... of many."""

    def metric_tuple(self) -> tuple[Metric, ...]:
        """Return the metrics for a report, without values that are not finite."""
        return tuple(Metric(name=name, value=value) for name, value in self.metrics.items() if math.isfinite(value))

    def validated(self, evaluation: Evaluation, share: float) -> None:
        """Store an evaluation at a share of the budget; also as the later score of an adaptation that waits for it."""
        share = min(1.0, max(share, self.curve[-1].share if self.curve else 0.0))
        if math.isfinite(evaluation.loss):
            earlier = self.curve if len(self.curve) < MAX_CURVE else self.curve[1::2]
            self.curve = (*earlier, CurvePoint(share=share, validation_loss=evaluation.loss))
        self.metrics |= evaluation.named("validation")
        if self.adaptations and self.adaptations[-1].after is None:
            self.adaptations[-1] = self.adaptations[-1].followed_by(evaluation.score)


@dataclass
class StepGaps:
    """Wall seconds between the ends of two optimizer steps: the cost of evaluating, saving and growing."""

    clock: Callable[[], float]
    observe: Callable[[float], None] = lambda seconds: None
    """Called with each gap."""
    _last: float | None = None
    _longest: float = 0.0

    def step_finished(self, progress: RunProgress) -> None:
        """Measure the gap that ends now."""
        now = self.clock()
        if self._last is not None:
            gap = now - self._last
            self.observe(gap)
            self._longest = max(self._longest, gap)
            progress.max_step_gap_seconds = max(progress.max_step_gap_seconds, gap)
        self._last = now

    def take(self) -> float:
        """Return the longest gap since the last call."""
        longest, self._longest = self._longest, 0.0
        return longest


@dataclass(frozen=True, slots=True)
class Ending:
    """Phase and reason with which a run ends."""

    phase: TrainerPhase
    reason: Reason
    message: str = ""


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """The result of a run."""

    phase: TrainerPhase
    reason: Reason
    message: str
    used_seconds: float
    """Used seconds of the budget, the final evaluation included."""
    epochs: int
    steps: int
    test_score: Score | None
    test_loss: float | None
    validation_score: Score | None
    depth_before: int
    depth_after: int
    parameters_before: int
    parameters_after: int
    adaptations: tuple[Adaptation, ...]
    max_step_gap_seconds: float
    allocation: Allocation

    @property
    def test_accuracy(self) -> float | None:
        """Accuracy on the test split; None for other tasks than classification."""
        return accuracy_of(self.test_score)

    @property
    def validation_accuracy(self) -> float | None:
        """Accuracy at the last evaluation; None for other tasks than classification."""
        return accuracy_of(self.validation_score)


def result_of(
    ending: Ending,
    test: Evaluation | None,
    network: Network,
    progress: RunProgress,
    used_seconds: float,
    allocation: Allocation,
) -> TrainingResult:
    """Return the result of a run that ended with `ending`."""
    return TrainingResult(
        phase=ending.phase,
        reason=ending.reason,
        message=ending.message,
        used_seconds=used_seconds,
        epochs=progress.epoch,
        steps=progress.step,
        test_score=test.score if test else None,
        test_loss=test.loss if test else None,
        validation_score=score_in(progress.metrics, "validation"),
        depth_before=progress.depth_before,
        depth_after=network.depth,
        parameters_before=progress.parameters_before,
        parameters_after=network.parameters,
        adaptations=tuple(progress.adaptations),
        max_step_gap_seconds=progress.max_step_gap_seconds,
        allocation=allocation,
    )


_LASTING: Final = frozenset(
    (
        errno.ENOENT,
        errno.ENOTDIR,
        errno.EISDIR,
        errno.EACCES,
        errno.EPERM,
        errno.EROFS,
        errno.EEXIST,
        errno.ENAMETOOLONG,
        errno.ELOOP,
    )
)
"""Operating-system errors caused by a wrong path or missing permissions."""
_OF_A_DEVICE: Final = ("CUDA", "cuDNN", "CUBLAS", "NCCL", "Gloo", "out of memory", "DataLoader worker")
"""Parts of messages of torch's `RuntimeError` that indicate a device, a connection or a killed process."""


def sentence(error: BaseException) -> str:
    """Return the cause in one sentence, with the user's file and line where the traceback has one."""
    text = "".join(traceback.format_exception(error))
    if not isinstance(error, TrainerError | LossNotFiniteError):
        return cause_in(text, ends_with_it=True)
    place = place_in(text)
    return f"{error} ({place})" if place else str(error)


def ending_of(error: BaseException, *, stepped: bool) -> Ending:
    """Return the ending of a run by an exception; `stepped`: this process had taken a step before.

    The reason is `TrainerFailed` where starting the same job again may succeed: for any error after a step, and for an
    error of the environment before. Any other error would be repeated: the author of the job has to act.
    """
    if isinstance(error, LossNotFiniteError):
        return Ending(TrainerPhase.FAILED, Reason.LOSS_NOT_FINITE, sentence(error))
    passes = may_pass(error) or isinstance(error, KeyboardInterrupt)
    mistake = not passes and (isinstance(error, TrainerError) or not stepped)
    return Ending(TrainerPhase.FAILED, Reason.INVALID_SPEC if mistake else Reason.TRAINER_FAILED, sentence(error))


def exit_code_of(reason: Reason) -> ExitCode:
    """Return the exit code of a run that failed for `reason`."""
    return _CODES.get(reason, ExitCode.INVALID)


_CODES: Final = {Reason.LOSS_NOT_FINITE: ExitCode.LOSS_NOT_FINITE, Reason.TRAINER_FAILED: ExitCode.ERROR}


def may_pass(error: BaseException) -> bool:
    """Return whether the same start may succeed later: the error, or one of its causes, comes from the environment.

    The environment is memory, devices, connections (including torch.distributed's) and file systems, but not a wrong
    path or missing permissions.
    """
    return any(_is_of_the_surroundings(each) for each in _chain(error))


def _is_of_the_surroundings(error: BaseException) -> bool:
    if isinstance(error, MemoryError | DistError):
        return True
    if isinstance(error, OSError):
        return error.errno not in _LASTING
    # torch.OutOfMemoryError is a RuntimeError too.
    return isinstance(error, RuntimeError) and any(part in str(error) for part in _OF_A_DEVICE)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and the errors that it was raised from or while handling."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
