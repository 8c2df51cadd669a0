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
    last_transition_time: AwareDatetime
    observed_generation: int = Field(default=0, ge=0)


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
    remaining_seconds: float = Field(default=0.0, ge=0)
    gpu_seconds_used: float = Field(default=0.0, ge=0)


class TrainingStatus(Record):
    """What the leader last reported."""

    epoch: int = 0
    step: int = 0
    progress_percentage: int = Field(default=0, ge=0, le=100)
    metrics: tuple[Metric, ...] = ()
    depth: int = 0
    parameters: int = 0
    last_updated_time: AwareDatetime | None = None


class JobStatus(Record):
    """`status` of an `AdaptiveTrainingJob`."""

    observed_generation: int = Field(default=0, ge=0)
    phase: JobPhase = JobPhase.PENDING
    conditions: tuple[Condition, ...] = ()
    start_time: AwareDatetime | None = None
    completion_time: AwareDatetime | None = None
    time_budget: TimeBudgetStatus = TimeBudgetStatus()
    allocation: Allocation = Allocation()
    training: TrainingStatus = TrainingStatus()
    adaptations: tuple[Adaptation, ...] = Field(default=(), max_length=MAX_ADAPTATIONS_KEPT)
    restarts: int = Field(default=0, ge=0)
    preemptions: int = Field(default=0, ge=0)
    last_checkpoint_time: AwareDatetime | None = None
    replicas: int = Field(default=0, ge=0)
    selector: str = ""
