"""Transitions of a job's state by the planner's decisions. Idempotent: applied twice, a decision has the effect of one.

The backend derives the consequences (workers started and ended, the allocation written) from the state.
"""

from __future__ import annotations

from dataclasses import replace

from espalier_core.types.allocation import Direction
from espalier_core.types.reasons import SENTENCES, Reason
from espalier_operator.job.state import JobState, Timing
from espalier_operator.model import REFUSALS, Ended, JobTerms, Reclaim, Stopping
from espalier_operator.model.actions import (
    Action,
    Admit,
    Fail,
    Finish,
    GrantExtra,
    NoticeReclaim,
    ReleaseExtra,
    Replace,
    RequestNodes,
    Requeue,
    Stop,
)

MAX_MESSAGE = 4096
"""Maximum length of a stored message, in characters."""
_UNSTARTED = REFUSALS | {Reason.PRE_RUNNING_DEADLINE_EXCEEDED}
"""Reasons for which a job that could not use its grant waits again."""
_TAKEN = (Reason.RECLAIM_FORCED, Reason.GPU_LOST)
"""Reasons for the loss of lent GPUs that were not given back."""


def after(state: JobState, action: Action, terms: JobTerms, now: float, timing: Timing) -> JobState:
    """Return the state after `action`; an action already applied changes nothing."""
    if _is_done(state, action):
        return state
    match action:
        case Admit():
            fresh = replace(state.with_workers(terms.min_replicas), not_before=None, ended=None, trained=False)
            fresh = replace(fresh, admitted_at=now, gpu_type=action.gpu_type, extra=0, counted_until=now)
            if isinstance(action, RequestNodes):
                fresh = replace(fresh, node_group=action.node_group, nodes_by=action.nodes_by)
            return fresh.granting(terms.min_replicas, Direction.UP, action.reason, terms)
        case GrantExtra():
            # The leader learns of them once they run (`progress.look`).
            return replace(
                state,
                extra=action.extra,
                extra_generation=max(state.extra_generation, state.grant.generation) + 1,
                granted_at=now,
                changed_at=now,
                promised_until=now + timing.promise,
            )
        case NoticeReclaim() if state.announced(terms) <= action.extra:
            # They are not in use yet, so no notice is needed.
            if state.extra <= action.extra:
                return state
            promised_until = state.promised_until if action.extra else None
            return replace(state, extra=action.extra, changed_at=now, promised_until=promised_until)
        case NoticeReclaim():
            reclaim = Reclaim(extra=action.extra, deadline=action.deadline, reason=action.reason)
            noticed, replicas = replace(state, reclaim=reclaim), terms.min_replicas + action.extra
            return noticed.granting(replicas, Direction.DOWN, action.reason, terms, deadline=action.deadline)
        case ReleaseExtra():
            known = state.reclaim is not None or state.announced(terms) > action.extra  # others never ran
            less = replace(
                state,
                extra=action.extra,
                reclaim=None,
                changed_at=now,
                promised_until=state.promised_until if action.extra else None,
                preemptions=state.preemptions + (known and action.forced and action.reason in _TAKEN),
            )
            if action.reason in REFUSALS:
                less = _held_back(less, now, timing)
            less = _lent_later(less, now, timing) if action.reason is Reason.GPU_LOST else replace(less, extra_losses=0)
            if state.announced(terms) <= action.extra:
                return less
            return less.granting(terms.min_replicas + action.extra, Direction.DOWN, action.reason, terms)
        case Replace():
            again = replace(state, unpinned=state.unpinned or not action.pinned)
            for index in (index for index in action.workers if any(state.incarnations[index : index + 1])):
                again = again.with_worker(index, attempt=again.attempts[index] + 1, incarnation="")
            return again
        case Stop():
            return replace(state, stopping=Stopping(reason=action.reason, deadline=action.deadline))
        case Requeue():
            # The loss of a running leader has been counted already; a job without a leader yet has lost nothing.
            lost = action.reason is Reason.GPU_LOST and any(state.incarnations[:1])
            waiting = replace(
                _without_workers(state),
                admitted_at=None,
                gpu_type=None,
                trained=False,
                unpinned=False,
                not_before=None,
                ended=None,
                attempts=tuple(attempt + 1 for attempt in state.attempts),
                incarnations=("",) * len(state.attempts),
                # Workers of the trainer library serve their leader, which will need them again.
                completed_workers=state.completed_workers if terms.program else (),
                preemptions=state.preemptions + lost,
                last_failure=action.message[:MAX_MESSAGE] or state.last_failure,
                hold_until=action.hold_until or state.hold_until,
                refused_since=None,
                gated=0,
                incomplete=False,
            )
            # kube-scheduler may choose a departing node again.
            bound_there = action.reason is Reason.NODE_DEPARTING and state.unplaced and not state.trained
            if action.reason in _UNSTARTED or bound_there:
                waiting = _held_back(waiting, now, timing)
            return waiting.granting(0, Direction.DOWN, action.reason, terms)
        case Finish() | Fail():
            message = action.message or SENTENCES[action.reason]
            over = replace(
                _without_workers(state),
                outcome=Ended(reason=action.reason, failed=isinstance(action, Fail), message=message[:MAX_MESSAGE]),
            )
            return over.granting(0, Direction.DOWN, action.reason, terms)


def _is_done(state: JobState, action: Action) -> bool:
    """Return whether `action` has been applied already, or no longer applies."""
    if state.outcome is not None:
        return True
    match action:
        case Finish() | Fail():
            return False
        case Admit():
            return state.admitted_at is not None
        case _ if state.admitted_at is None:
            return True
        case GrantExtra():
            return state.extra >= action.extra
        case NoticeReclaim():
            return (state.extra if state.reclaim is None else state.reclaim.extra) <= action.extra
        case ReleaseExtra():
            return state.reclaim is None and state.extra <= action.extra
        case Stop():
            return state.stopping is not None
        case Replace() | Requeue():
            return False


def _held_back(state: JobState, now: float, timing: Timing) -> JobState:
    """Hold further grants, which could not be used, for a while: twice as long each time in a row."""
    return replace(state, unplaced=state.unplaced + 1, hold_until=now + timing.held(state.unplaced))


def _lent_later(state: JobState, now: float, timing: Timing) -> JobState:
    """Hold loans for a while, twice as long each time in a row: the node may be gone, or the workers end at once."""
    lasted = now - (now if state.granted_at is None else state.granted_at)
    losses = 0 if lasted > timing.max_hold else state.extra_losses
    return replace(state, extra_losses=losses + 1, lend_after=now + timing.held(losses))


def _without_workers(state: JobState) -> JobState:
    return replace(state, extra=0, reclaim=None, stopping=None, promised_until=None, node_group="", nodes_by=None)
