"""The status of a job: one writer, the operator."""

from __future__ import annotations

from enum import StrEnum

from pydantic import AwareDatetime, Field

from espalier_api.allocation import Allocation
from espalier_api.base import Record
from espalier_api.reasons import Reason
from espalier_api.report import Adaptation, Metric

MAX_ADAPTATIONS_KEPT = 20
"""How many entries `status.adaptations` keeps, the newest."""


class ConditionType(StrEnum):
    """The conditions of a job."""

    ADMITTED = "Admitted"
    RUNNING = "Running"
    EXTRA_GPUS_GRANTED = "ExtraGPUsGranted"
    RECLAIM_PENDING = "ReclaimPending"
    SUSPENDED = "Suspended"
    COMPLETE = "Complete"
    FAILED = "Failed"


class ConditionStatus(StrEnum):
    """As metav1."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Condition(Record):
    """A condition in the metav1 shape."""

    type: ConditionType
    status: ConditionStatus
    reason: Reason
    message: str = ""
    """The reason in words, for a person."""
    last_transition_time: AwareDatetime
    """When its status last changed."""
    observed_generation: int = Field(default=0, ge=0)
    """Generation of the job that was looked at."""


class JobPhase(StrEnum):
    """For printing only: nothing reads it."""

    PENDING = "Pending"
    STARTING = "Starting"
    RUNNING = "Running"
    SUSPENDED = "Suspended"
    COMPLETE = "Complete"
    FAILED = "Failed"


class TimeBudgetStatus(Record):
    """The time budget as it stands."""

    used_seconds: float = Field(default=0.0, ge=0)
    """Seconds of the time budget that are used."""
    remaining_seconds: float = Field(default=0.0, ge=0)
    """Seconds of the time budget that are left."""
    gpu_seconds_used: float = Field(default=0.0, ge=0)
    """GPU-seconds of all workers."""


class TrainingStatus(Record):
    """What the leader last reported."""

    epoch: int = 0
    """Epochs completed."""
    step: int = 0
    """Steps taken."""
    progress_percentage: int = Field(default=0, ge=0, le=100)
    """Time budget used, in percent."""
    metrics: tuple[Metric, ...] = ()
    """The latest figures, by name."""
    depth: int = 0
    """Layers of the model."""
    parameters: int = 0
    """Trainable parameters of the model."""
    last_updated_time: AwareDatetime | None = None
    """When the report was written."""


class StandingReclaim(Record):
    """A notice that stands: the job is to be down to `extra` extra workers by `deadline`."""

    extra: int = Field(ge=0)
    """Extra workers that remain."""
    deadline: AwareDatetime
    """Past it the others are taken by force."""
    reason: Reason


class StandingStop(Record):
    """A demand that stands: the job is to checkpoint and end by `deadline`."""

    reason: Reason
    deadline: AwareDatetime
    """Past it the job is ended by force."""


class SchedulingStatus(Record):
    """What the scheduler must not forget of a job: an operator that starts reads it here and goes on.

    It is written with the rest of the status before anything is done, so that whatever comes to an end in between
    is taken up by reading it again.
    """

    admitted_at: AwareDatetime | None = None
    """When its base GPUs were granted; unset while it waits."""
    gpu_type: str | None = None
    """The type of GPU it was admitted on."""
    extra: int = Field(default=0, ge=0)
    """Extra workers lent, those being reclaimed included until they are released."""
    extra_generation: int = Field(default=0, ge=0)
    """Generation of the allocation that last lent some; it is part of the names of their pods."""
    reclaim: StandingReclaim | None = None
    granted_at: AwareDatetime | None = None
    """When extra GPUs were last lent to it."""
    changed_at: AwareDatetime | None = None
    """When its extra GPUs last changed, up or down."""
    promised_until: AwareDatetime | None = None
    """Until then it counts as holding all its extra workers, even where fewer are seen."""
    stopping: StandingStop | None = None
    counted_until: AwareDatetime | None = None
    """The moment up to which its budgets are counted."""
    trained: bool = False
    """It has trained since it was admitted."""
    failures: int = Field(default=0, ge=0)
    """Failures of its workers that count against backoffLimit."""
    last_failure: str = ""
    """What the last of them was."""
    attempts: tuple[int, ...] = ()
    """By base worker: how often its pod was replaced; it is part of the name of the pod."""
    pod_uids: tuple[str, ...] = ()
    """By base worker: the pod that was last seen at this attempt, empty for none yet."""
    not_before: AwareDatetime | None = None
    """A leader that failed is not started again earlier."""


class JobStatus(Record):
    """`status` of an `AdaptiveTrainingJob`."""

    observed_generation: int = Field(default=0, ge=0)
    """Generation of the job that this status is about."""
    phase: JobPhase = JobPhase.PENDING
    conditions: tuple[Condition, ...] = ()
    """What holds of it and what does not, and why; one entry a type."""
    start_time: AwareDatetime | None = None
    """When it first trained."""
    completion_time: AwareDatetime | None = None
    """When it ended."""
    time_budget: TimeBudgetStatus = TimeBudgetStatus()
    allocation: Allocation = Allocation()
    training: TrainingStatus = TrainingStatus()
    adaptations: tuple[Adaptation, ...] = Field(default=(), max_length=MAX_ADAPTATIONS_KEPT)
    """The newest consultations of the agent and what was done."""
    adaptation_count: int = Field(default=0, ge=0)
    """How often the model has grown."""
    restarts: int = Field(default=0, ge=0)
    """How often its leader was started again, for whatever cause."""
    preemptions: int = Field(default=0, ge=0)
    """How often GPUs were taken from it by force, or its leader was ended from outside."""
    last_checkpoint_time: AwareDatetime | None = None
    """When its leader last wrote a checkpoint."""
    replicas: int = Field(default=0, ge=0)
    """Workers that it is to have, base and extra."""
    selector: str = ""
    """Label selector of its pods, for the scale subresource."""
    scheduling: SchedulingStatus = SchedulingStatus()
