"""How an action changes what is remembered of a job. Pure; applying an action twice is applying it once.

What follows from it in the cluster (pods made and deleted, the trainer told) is not done here but converged to.
"""

from __future__ import annotations

from dataclasses import replace

from espalier_api.allocation import Allocation, Direction
from espalier_api.reasons import SENTENCES, Reason
from espalier_operator.actions import (
    Action,
    Admit,
    Fail,
    Finish,
    GrantExtra,
    NoticeReclaim,
    ReleaseExtra,
    Requeue,
    Stop,
)
from espalier_operator.conditions import MAX_MESSAGE, Outcome
from espalier_operator.facts import Reclaim, Stopping, Terms
from espalier_operator.kube.record import Record, time_of
from espalier_operator.kube.settings import KubeSettings

_TAKEN = (Reason.RECLAIM_FORCED, Reason.GPU_LOST)
"""Reasons for which lent GPUs went without having been given back."""


def after(record: Record, action: Action, terms: Terms, now: float, settings: KubeSettings) -> Record:
    """Return what is remembered once `action` is decided; what has been done already changes nothing."""
    if _is_done(record, action):
        return record
    match action:
        case Admit():
            fresh = replace(record.with_workers(terms.min_replicas), not_before=None, ended=None, trained=False)
            fresh = replace(fresh, admitted_at=now, gpu_type=action.gpu_type, extra=0, counted_until=now)
            return _allocate(fresh, terms.min_replicas, Direction.UP, action.reason, terms)
        case GrantExtra():
            lent = replace(
                record,
                extra=action.extra,
                extra_generation=record.allocation.generation + 1,
                granted_at=now,
                changed_at=now,
                promised_until=now + settings.promise_seconds,
            )
            return _allocate(lent, terms.min_replicas + action.extra, Direction.UP, action.reason, terms)
        case NoticeReclaim():
            asked = Reclaim(extra=action.extra, deadline=action.deadline, reason=action.reason)
            replicas = terms.min_replicas + action.extra
            noticed = replace(record, reclaim=asked)
            return _allocate(noticed, replicas, Direction.DOWN, action.reason, terms, deadline=action.deadline)
        case ReleaseExtra():
            less = replace(
                record,
                extra=action.extra,
                reclaim=None,
                changed_at=now,
                promised_until=record.promised_until if action.extra else None,
                preemptions=record.preemptions + (action.forced and action.reason in _TAKEN),
            )
            replicas = terms.min_replicas + action.extra
            if record.allocation.replicas == replicas:
                return less
            return _allocate(less, replicas, Direction.DOWN, action.reason, terms)
        case Stop():
            return replace(record, stopping=Stopping(reason=action.reason, deadline=action.deadline))
        case Requeue():
            # Whose leader is lost has had that counted; one that was not there yet lost nothing.
            lost = action.reason is Reason.GPU_LOST and any(record.pod_uids[:1])
            waiting = replace(
                _without_workers(record),
                admitted_at=None,
                gpu_type=None,
                trained=False,
                not_before=None,
                ended=None,
                attempts=tuple(attempt + 1 for attempt in record.attempts),
                pod_uids=("",) * len(record.attempts),
                preemptions=record.preemptions + lost,
            )
            return _allocate(waiting, 0, Direction.DOWN, action.reason, terms)
        case Finish() | Fail():
            message = action.message or SENTENCES[action.reason]
            over = replace(
                _without_workers(record),
                outcome=Outcome(reason=action.reason, failed=isinstance(action, Fail), message=message[:MAX_MESSAGE]),
            )
            return _allocate(over, 0, Direction.DOWN, action.reason, terms)


def _is_done(record: Record, action: Action) -> bool:
    """Return whether `action` says nothing new, or nothing that still applies."""
    if record.outcome is not None:
        return True
    match action:
        case Finish() | Fail():
            return False
        case Admit():
            return record.admitted_at is not None
        case _ if record.admitted_at is None:
            return True
        case GrantExtra():
            return record.extra >= action.extra
        case NoticeReclaim():
            return record.reclaim is not None and record.reclaim.extra <= action.extra
        case ReleaseExtra():
            return record.reclaim is None and record.extra <= action.extra
        case Stop():
            return record.stopping is not None
        case Requeue():
            return False


def _without_workers(record: Record) -> Record:
    return replace(record, extra=0, reclaim=None, stopping=None, promised_until=None)


def _allocate(
    record: Record, replicas: int, direction: Direction, reason: Reason, terms: Terms, deadline: float | None = None
) -> Record:
    allocation = Allocation(
        generation=record.allocation.generation + 1,
        replicas=replicas,
        gpus=replicas * terms.gpus_per_worker,
        direction=direction,
        reason=reason,
        deadline=None if deadline is None else time_of(deadline),
    )
    return replace(record, allocation=allocation)
