"""The queue: a `Queue` as platform teams write it. It limits the GPUs of the jobs that name it in `spec.queue`."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, Literal

from pydantic import AwareDatetime, ConfigDict, Field, ValidationInfo, field_validator

from espalier_core.base import DNS_LABEL, Record, Strict, repeated
from espalier_core.types.job import Name
from espalier_core.types.status import ConditionStatus

QUEUE_KIND: Final = "Queue"
QUEUE_PLURAL: Final = "queues"
LIMIT_WITHOUT_COHORT: Final = "has a borrowingLimit, but the queue is in no cohort; set spec.cohort, or remove it"
_MOST: Final = 1_000_000


class QuotaSpec(Strict):
    """Base GPUs of one type. Extra GPUs are not counted: they are lent from spare ones."""

    gpu_type: str | None = Field(default=None, min_length=1, max_length=63)
    """Type of GPU, the value of the node label that distinguishes types. Absent: all types without a quota,
    together."""
    nominal: int = Field(ge=0, le=_MOST)
    """GPUs that the queue's jobs may hold in any case."""
    borrowing_limit: int | None = Field(default=None, ge=0, le=_MOST)
    """GPUs that they may hold in addition while other queues of the cohort do not use their own. Default: no limit."""


class QueueSpec(Strict):
    """`spec` of a `Queue`."""

    cohort: Name | None = None
    """Queues of one cohort borrow GPUs that the others do not use. Absent: the queue borrows and lends nothing."""
    namespaces: tuple[Annotated[str, Field(pattern=DNS_LABEL, max_length=63)], ...] = Field(default=(), max_length=1000)
    """Namespaces whose jobs may use the queue. Absent: all."""
    max_priority: int | None = Field(default=None, ge=-2_147_483_648, le=1_000_000_000)
    """Jobs of a higher priority are not admitted. Absent: no limit."""
    weight: int = Field(default=1, ge=1, le=1000)
    """Among waiting jobs of one priority, the queue with the fewest recent base GPUs per weight goes first."""
    quotas: tuple[QuotaSpec, ...] = Field(default=(), max_length=100)
    """Absent: any number of GPUs of any type. Otherwise the queue has no GPUs of a type without a quota."""

    @field_validator("quotas")
    @classmethod
    def _one_for_each_type(cls, value: tuple[QuotaSpec, ...]) -> tuple[QuotaSpec, ...]:
        for gpu_type, number in repeated(quota.gpu_type for quota in value).items():
            whose = "without a gpuType" if gpu_type is None else f"for gpuType {gpu_type!r}"
            raise ValueError(f"has {number} quotas {whose}; merge them")
        return value

    @field_validator("quotas")
    @classmethod
    def _limits_in_a_cohort(cls, value: tuple[QuotaSpec, ...], info: ValidationInfo) -> tuple[QuotaSpec, ...]:
        # An invalid cohort is not in `info.data`, and is reported by itself.
        if info.data.get("cohort", "") is None and any(quota.borrowing_limit is not None for quota in value):
            raise ValueError(LIMIT_WITHOUT_COHORT)
        return value


class QuotaUsage(Record):
    """Use of one quota by the queue's jobs."""

    gpu_type: str | None = None
    """The type of the quota; absent for the quota of all other types together."""
    nominal: int = 0
    """Its nominal GPUs."""
    used: int = 0
    """Base GPUs held by jobs."""
    borrowed: int = 0
    """The part of `used` beyond `nominal`."""


class QueueConditionType(StrEnum):
    """The conditions of a queue."""

    ACTIVE = "Active"
    EXHAUSTED = "Exhausted"


class QueueReason(StrEnum):
    """The cause of a queue's condition."""

    READY = "Ready"
    INVALID_SPEC = "InvalidSpec"
    JOBS_WAIT = "JobsWait"
    NOBODY_WAITS = "NobodyWaits"


class QueueCondition(Record):
    """A condition in the metav1 shape."""

    type: QueueConditionType
    status: ConditionStatus
    reason: QueueReason
    message: str = ""
    """The reason as a sentence."""
    last_transition_time: AwareDatetime
    """When `status` last changed."""
    observed_generation: int = Field(default=0, ge=0)
    """Generation of the queue that the condition is about."""


class QueueStatus(Record):
    """`status` of a `Queue`: the jobs of one operator that name it. It is written every five seconds at most."""

    admitted_jobs: int = 0
    """Jobs that hold base GPUs."""
    pending_jobs: int = 0
    """Jobs that wait; suspended ones are not counted."""
    used_gpus: int = 0
    """Base GPUs held by jobs, of all types."""
    borrowed_gpus: int = 0
    """The part of `usedGpus` beyond the nominal quotas."""
    usage: tuple[QuotaUsage, ...] = Field(default=(), max_length=100)
    """Use of each quota."""
    conditions: tuple[QueueCondition, ...] = Field(default=(), max_length=8)
    """`Active`: jobs of the queue are admitted. `Exhausted`: a job waits for a quota of it."""


class QueueMeta(Strict):
    """The part of metav1 ObjectMeta that Espalier reads."""

    model_config = ConfigDict(extra="allow")
    name: Name


class Queue(Strict):
    """One queue; it belongs to no namespace."""

    api_version: Literal["espalier.dev/v1alpha1"]
    kind: Literal["Queue"]
    metadata: QueueMeta
    spec: QueueSpec = QueueSpec()
