"""The GPUs that the scheduler grants a job, the used part of its time budget, and the trace of that signal."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256

from pydantic import AwareDatetime, Field

from espalier_core.base import Record
from espalier_core.types.reasons import Reason


class Direction(StrEnum):
    """Change of an allocation against the one before it (the paper's `allocation()`, Lamelas 4.1)."""

    UP = "up"
    DOWN = "down"
    NONE = "none"


class Allocation(Record):
    """The grant of the scheduler to a job at a moment.

    `generation` rises by one with each change; everyone acknowledges by repeating it. A `down` allocation names
    the replicas that remain and the `deadline` by which the others must be gone; past it they are taken by force.
    """

    generation: int = Field(default=0, ge=0)
    """Increases by one with each change."""
    replicas: int = Field(default=0, ge=0)
    """Workers, base and extra together."""
    gpus: int = Field(default=0, ge=0)
    """GPUs of all workers together."""
    direction: Direction = Direction.NONE
    reason: str = ""
    """A reason of `docs/reference/reasons.md`, or empty."""
    deadline: AwareDatetime | None = None
    """Wall-clock time by which a `down` must be acknowledged."""
    traceparent: str | None = Field(default=None, max_length=55)
    """Trace of this signal, in the format of W3C Trace Context; absent where the operator exports no traces."""


class TimeBudget(Record):
    """The time budget of a job, in budget seconds (Espalier's design, "The words")."""

    budget_seconds: float = Field(gt=0)
    used_seconds: float = Field(default=0.0, ge=0)
    gpu_seconds_used: float = Field(default=0.0, ge=0)
    """GPU-seconds, base and extra together."""

    @property
    def remaining_seconds(self) -> float:
        """Seconds left, never below zero."""
        return max(0.0, self.budget_seconds - self.used_seconds)


class AllocationDocument(Record):
    """The allocation file: the complete message of a scheduler to a trainer without an API server.

    `time_budget.used_seconds` is true at the moment of writing and is read once, when the trainer starts; from
    then on the trainer counts by its own monotonic clock.
    """

    job: str
    allocation: Allocation
    time_budget: TimeBudget
    base_replicas: int = Field(default=1, ge=0)
    """`spec.minReplicas`: workers above this number are extra."""
    waits_for_workers: bool = False
    """Somebody still holds base workers by scheduling gates, and the job has not trained: training does not begin."""
    stop: Reason | None = None
    """The reason why the job must end now; absent if it goes on. `GPUBudgetExhausted` is a normal end: the trainer
    evaluates and completes. For any other reason (suspension), it saves a checkpoint to resume from."""


@dataclass(frozen=True, slots=True)
class SignalTrace:
    """The trace of a job's allocation, and its first span."""

    trace_id: int
    """128 bits, not 0."""
    span_id: int
    """64 bits, not 0."""

    @classmethod
    def of(cls, uid: str, generation: int) -> SignalTrace:
        """Return the trace of one generation of the allocation of the job with this UID."""
        digest = sha256(f"{uid}/{generation}".encode()).digest()
        return cls(int.from_bytes(digest[:16]) or 1, int.from_bytes(digest[16:24]) or 1)

    @property
    def traceparent(self) -> str:
        """The header `traceparent`, version 00, sampled."""
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-01"
