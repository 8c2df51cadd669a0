"""The events of a run, one JSON line each in `history.jsonl`.

The trainer appends its own to `events.jsonl`, the scheduler appends the rest; `used_seconds` (budget time of the
job) is the axis that they share.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import AwareDatetime, Field, TypeAdapter

from espalier_core.base import Record
from espalier_core.types.allocation import Allocation
from espalier_core.types.report import Adaptation, Metric
from espalier_core.types.task import Score, accuracy_score

NOT_GROWABLE: Final = "NotGrowable"
"""Reason of the warning that the model cannot grow."""
NOT_TRIED: Final = ("TrialsNotPossible", "TrialAbandoned")
"""Reasons of the warnings that a growth is not tried first, and that its trial was given up."""


class Event(Record):
    """Fields of all events."""

    time: AwareDatetime
    used_seconds: float = Field(ge=0)
    """Budget time of the job when it happened."""


class TrainerStarted(Event):
    """The trainer is ready: the time budget runs from here."""

    type: Literal["TrainerStarted"] = "TrainerStarted"
    incarnation: str
    resumed: bool
    epoch: int
    step: int
    depth: int
    parameters: int
    device: str


class EpochFinished(Event):
    """One pass over the training split and the evaluation after it."""

    type: Literal["EpochFinished"] = "EpochFinished"
    epoch: int
    step: int
    train_loss: float
    validation_loss: float
    validation_accuracy: float | None = None
    """Validation accuracy of a classification; None for another task."""
    validation_score: Score | None = None
    """Validation score of another task; None for a classification."""
    learning_rate: float
    depth: int
    parameters: int
    max_step_gap_seconds: float
    """The longest time between two optimizer steps in this epoch, wall time."""

    @property
    def score(self) -> Score | None:
        """The validation score of any task."""
        return self.validation_score or accuracy_score(self.validation_accuracy)


class AdaptationFinished(Event):
    """The agent was consulted and its advice carried out, or not."""

    type: Literal["AdaptationFinished"] = "AdaptationFinished"
    adaptation: Adaptation


class TrialStarted(Event):
    """GPUs were taken back: a smaller model learns from the grown one, which is kept until the two are compared."""

    type: Literal["TrialStarted"] = "TrialStarted"
    step: int
    depth: int
    """Layers of the smaller model."""
    parameters: int
    seconds: float
    """Seconds of the budget until they are compared."""


class TrialsStarted(Event):
    """Extra workers try actions on copies of the model, before one of them is carried out."""

    type: Literal["TrialsStarted"] = "TrialsStarted"
    actions: tuple[str, ...]
    workers: int
    """Number of workers that try them."""
    seconds: float
    """Wall time for each action."""


class CheckpointSaved(Event):
    """A checkpoint is complete on disk."""

    type: Literal["CheckpointSaved"] = "CheckpointSaved"
    path: str
    step: int
    seconds: float


class WorkersChanged(Event):
    """Workers joined or left the training; all workers that train together take each step together."""

    type: Literal["WorkersChanged"] = "WorkersChanged"
    workers: int
    """Number of workers that train together now, leader included."""
    seconds: float
    """Duration of the pause of training."""


class BatchSizeChanged(Event):
    """A job with `batch: Goodput` continues with another batch size."""

    type: Literal["BatchSizeChanged"] = "BatchSizeChanged"
    before: int
    """Examples in a step of all workers together."""
    batch_size: int
    passes: int
    """Number of parts in which each worker computes its share."""
    workers: int
    goodput: float | None = None
    """Expected goodput of the new size relative to the old one; None: there was no memory for the old one."""
    learning_rate_factor: float
    """Factor by which the author's learning rate is multiplied."""
    noise_scale: float | None = None
    """Noise scale of the gradients; None where it is not known."""
    message: str = ""


class Warned(Event):
    """Something went wrong that did not stop training."""

    type: Literal["Warned"] = "Warned"
    reason: str
    message: str


class TrainerFinished(Event):
    """The trainer ended by itself; with the score on the test split if its budget was used up."""

    type: Literal["TrainerFinished"] = "TrainerFinished"
    phase: str
    reason: str
    message: str = ""
    epoch: int
    step: int
    test_accuracy: float | None = None
    """Test accuracy of a classification; None for another task."""
    test_score: Score | None = None
    """Test score of another task; None for a classification."""
    test_loss: float | None = None
    depth: int
    parameters: int
    max_step_gap_seconds: float

    @property
    def score(self) -> Score | None:
        """The score on the test split, of any task."""
        return self.test_score or accuracy_score(self.test_accuracy)


class AllocationChanged(Event):
    """The scheduler wrote a new allocation."""

    type: Literal["AllocationChanged"] = "AllocationChanged"
    allocation: Allocation


class AllocationAcknowledged(Event):
    """The leader has repeated the generation of an allocation."""

    type: Literal["AllocationAcknowledged"] = "AllocationAcknowledged"
    generation: int
    seconds: float
    """Time from the write of the allocation until the scheduler saw the acknowledgement, wall time."""


class GPUsChanged(Event):
    """GPUs came or went."""

    type: Literal["GPUsChanged"] = "GPUsChanged"
    total: int
    change: int


class ProgressRead(Event):
    """Values were read from a program that does not report by itself."""

    type: Literal["ProgressRead"] = "ProgressRead"
    step: int
    epoch: int
    done: float | None = None
    """Part of its work that is done, 0 to 1; None if the program does not report it."""
    metrics: tuple[Metric, ...] = ()


class JobChanged(Event):
    """A job was admitted, started, restarted, suspended, completed or failed."""

    type: Literal["JobChanged"] = "JobChanged"
    phase: str
    reason: str
    message: str = ""


AnyEvent = Annotated[
    TrainerStarted
    | EpochFinished
    | AdaptationFinished
    | TrialStarted
    | TrialsStarted
    | CheckpointSaved
    | WorkersChanged
    | BatchSizeChanged
    | Warned
    | TrainerFinished
    | AllocationChanged
    | AllocationAcknowledged
    | GPUsChanged
    | ProgressRead
    | JobChanged,
    Field(discriminator="type"),
]
EVENT: TypeAdapter[AnyEvent] = TypeAdapter(AnyEvent)
"""Parses one line of `history.jsonl`."""
