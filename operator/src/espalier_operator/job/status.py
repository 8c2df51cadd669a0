"""Converts a job's state to the fields of its status, and back. Times there are RFC 3339 with microseconds."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from espalier_core.types.allocation import Allocation
from espalier_core.types.status import (
    AvoidedNode,
    ConditionType,
    JobStatus,
    SchedulingStatus,
    StandingReclaim,
    StandingStop,
    TimeBudgetStatus,
)
from espalier_operator.job.state import Grant, JobState
from espalier_operator.model import Blame, Ended, JobTerms, Reclaim, Stopping

Wall = Callable[[float], datetime]
"""Turns seconds of the backend's clock into a time of day."""

_TIMES: Final = (
    "admitted_at",
    "granted_at",
    "changed_at",
    "promised_until",
    "counted_until",
    "down_since",
    "not_before",
    "hold_until",
    "lend_after",
)
_PLAIN: Final = (
    "gpu_type",
    "extra",
    "extra_generation",
    "budget_end_seconds",
    "trained",
    "gated",
    "failures",
    "last_failure",
    "attempts",
    "completed_workers",
    "unplaced",
    "extra_losses",
)
_OF_BLAME: Final = ("node", "times", "message", "refused", "elsewhere", "loan")


def utc(seconds: float) -> datetime:
    """Return epoch seconds as a time in UTC."""
    return datetime.fromtimestamp(seconds, UTC)


def memory_of(state: JobState, terms: JobTerms, wall: Wall = utc) -> JobStatus:
    """Return a status with the state of a job; the conditions state its outcome."""
    reclaim, stopping, times = state.reclaim, state.stopping, {name: getattr(state, name) for name in _TIMES}
    return JobStatus(
        allocation=allocation_of(state.grant, wall),
        time_budget=TimeBudgetStatus(
            used_seconds=state.used_seconds,
            remaining_seconds=max(0.0, terms.time_budget_seconds - state.used_seconds),
            gpu_seconds_used=state.gpu_seconds_used,
        ),
        restarts=state.restarts,
        preemptions=state.preemptions,
        replicas=terms.min_replicas + state.extra if state.admitted_at is not None else 0,
        scheduling=SchedulingStatus(
            **{name: getattr(state, name) for name in _PLAIN},
            **{name: None if time is None else wall(time) for name, time in times.items()},
            reclaim=None
            if reclaim is None
            else StandingReclaim(extra=reclaim.extra, deadline=wall(reclaim.deadline), reason=reclaim.reason),
            stopping=None
            if stopping is None
            else StandingStop(reason=stopping.reason, deadline=wall(stopping.deadline)),
            pod_uids=state.incarnations,
            avoided_nodes=tuple(
                AvoidedNode(last_time=wall(blame.at), **{name: getattr(blame, name) for name in _OF_BLAME})
                for blame in state.blames
            ),
        ),
    )


def state_of(status: JobStatus | None, submitted_at: float | None = None) -> JobState:
    """Return the state stored in `status`, in epoch seconds; a new state where there is no status yet."""
    if status is None:
        return JobState(submitted_at=submitted_at)
    kept, allocation = status.scheduling, status.allocation
    reclaim, stopping = kept.reclaim, kept.stopping
    times: dict[str, Any] = {name: getattr(kept, name) for name in _TIMES}
    seconds: dict[str, Any] = {name: None if time is None else time.timestamp() for name, time in times.items()}
    return JobState(
        submitted_at=submitted_at,
        grant=Grant(
            generation=allocation.generation,
            replicas=allocation.replicas,
            gpus=allocation.gpus,
            direction=allocation.direction,
            reason=allocation.reason,
            deadline=None if allocation.deadline is None else allocation.deadline.timestamp(),
        ),
        **{name: getattr(kept, name) for name in _PLAIN},
        **seconds,
        reclaim=None
        if reclaim is None
        else Reclaim(extra=reclaim.extra, deadline=reclaim.deadline.timestamp(), reason=reclaim.reason),
        stopping=None if stopping is None else Stopping(reason=stopping.reason, deadline=stopping.deadline.timestamp()),
        used_seconds=status.time_budget.used_seconds,
        gpu_seconds_used=status.time_budget.gpu_seconds_used,
        restarts=status.restarts,
        preemptions=status.preemptions,
        incarnations=(*kept.pod_uids, *[""] * (len(kept.attempts) - len(kept.pod_uids)))[: len(kept.attempts)],
        outcome=outcome_of(status),
        blames=tuple(
            Blame(at=each.last_time.timestamp(), **{name: getattr(each, name) for name in _OF_BLAME})
            for each in kept.avoided_nodes
        ),
    )


def allocation_of(grant: Grant, wall: Wall = utc) -> Allocation:
    """Return `grant` in the form that trainers and people read."""
    return Allocation(
        generation=grant.generation,
        replicas=grant.replicas,
        gpus=grant.gpus,
        direction=grant.direction,
        reason=grant.reason,
        deadline=None if grant.deadline is None else wall(grant.deadline),
    )


def outcome_of(status: JobStatus) -> Ended | None:
    """Return how the job ended, by its conditions; None where it has not."""
    end = status.outcome
    if end is None:
        return None
    return Ended(reason=end.reason, failed=end.type is ConditionType.FAILED, message=end.message)
