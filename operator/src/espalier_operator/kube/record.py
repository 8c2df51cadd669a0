"""What is remembered of a job between two ticks, and between two operators: the scheduling part of its status.

Times are epoch seconds here and RFC 3339 in the status, exact to the microsecond.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from espalier_api.allocation import Allocation
from espalier_api.status import (
    ConditionStatus,
    ConditionType,
    JobStatus,
    SchedulingStatus,
    StandingReclaim,
    StandingStop,
)
from espalier_operator.conditions import Outcome
from espalier_operator.facts import Ended, Reclaim, Stopping


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One job's memory. All but the last field is in its status."""

    allocation: Allocation = field(default_factory=Allocation)
    admitted_at: float | None = None
    gpu_type: str | None = None
    extra: int = 0
    extra_generation: int = 0
    reclaim: Reclaim | None = None
    granted_at: float | None = None
    changed_at: float | None = None
    promised_until: float | None = None
    stopping: Stopping | None = None
    used_seconds: float = 0.0
    gpu_seconds_used: float = 0.0
    counted_until: float | None = None
    trained: bool = False
    failures: int = 0
    last_failure: str = ""
    restarts: int = 0
    preemptions: int = 0
    attempts: tuple[int, ...] = ()
    pod_uids: tuple[str, ...] = ()
    not_before: float | None = None
    outcome: Outcome | None = None
    ended: Ended | None = None
    """What the end of the leader means, until the planner has drawn the conclusion."""

    def with_workers(self, count: int) -> Record:
        """Return the record with room for `count` base workers."""
        missing = count - len(self.attempts)
        if missing <= 0:
            return self
        return replace(self, attempts=(*self.attempts, *[0] * missing), pod_uids=(*self.pod_uids, *[""] * missing))

    def with_worker(self, index: int, *, attempt: int | None = None, uid: str) -> Record:
        """Return the record with another pod for base worker `index`, or another attempt."""
        attempts, uids = list(self.attempts), list(self.pod_uids)
        attempts[index] = attempts[index] if attempt is None else attempt
        uids[index] = uid
        return replace(self, attempts=tuple(attempts), pod_uids=tuple(uids))


def record_of(status: JobStatus | None) -> Record:
    """Return the record that `status` keeps; a new one where there is no status yet."""
    if status is None:
        return Record()
    kept = status.scheduling
    reclaim, stopping = kept.reclaim, kept.stopping
    return Record(
        allocation=status.allocation,
        admitted_at=_seconds(kept.admitted_at),
        gpu_type=kept.gpu_type,
        extra=kept.extra,
        extra_generation=kept.extra_generation,
        reclaim=None
        if reclaim is None
        else Reclaim(extra=reclaim.extra, deadline=reclaim.deadline.timestamp(), reason=reclaim.reason),
        granted_at=_seconds(kept.granted_at),
        changed_at=_seconds(kept.changed_at),
        promised_until=_seconds(kept.promised_until),
        stopping=None if stopping is None else Stopping(reason=stopping.reason, deadline=stopping.deadline.timestamp()),
        used_seconds=status.time_budget.used_seconds,
        gpu_seconds_used=status.time_budget.gpu_seconds_used,
        counted_until=_seconds(kept.counted_until),
        trained=kept.trained,
        failures=kept.failures,
        last_failure=kept.last_failure,
        restarts=status.restarts,
        preemptions=status.preemptions,
        attempts=kept.attempts,
        pod_uids=(*kept.pod_uids, *[""] * (len(kept.attempts) - len(kept.pod_uids)))[: len(kept.attempts)],
        not_before=_seconds(kept.not_before),
        outcome=_outcome(status),
    )


def scheduling_of(record: Record) -> SchedulingStatus:
    """Return what the status keeps of `record` besides allocation, budget, counters and conditions."""
    reclaim, stopping = record.reclaim, record.stopping
    return SchedulingStatus(
        admitted_at=_time(record.admitted_at),
        gpu_type=record.gpu_type,
        extra=record.extra,
        extra_generation=record.extra_generation,
        reclaim=None
        if reclaim is None
        else StandingReclaim(extra=reclaim.extra, deadline=time_of(reclaim.deadline), reason=reclaim.reason),
        granted_at=_time(record.granted_at),
        changed_at=_time(record.changed_at),
        promised_until=_time(record.promised_until),
        stopping=None
        if stopping is None
        else StandingStop(reason=stopping.reason, deadline=time_of(stopping.deadline)),
        counted_until=_time(record.counted_until),
        trained=record.trained,
        failures=record.failures,
        last_failure=record.last_failure,
        attempts=record.attempts,
        pod_uids=record.pod_uids,
        not_before=_time(record.not_before),
    )


def time_of(seconds: float) -> datetime:
    """Return epoch seconds as a time in UTC."""
    return datetime.fromtimestamp(seconds, UTC)


def _time(seconds: float | None) -> datetime | None:
    return None if seconds is None else time_of(seconds)


def _seconds(time: datetime | None) -> float | None:
    return None if time is None else time.timestamp()


def _outcome(status: JobStatus) -> Outcome | None:
    for condition in status.conditions:
        if condition.status is ConditionStatus.TRUE and condition.type in (
            ConditionType.COMPLETE,
            ConditionType.FAILED,
        ):
            return Outcome(
                reason=condition.reason,
                failed=condition.type is ConditionType.FAILED,
                message=condition.message,
            )
    return None
