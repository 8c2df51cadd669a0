"""Consequences of an observation: used budgets, ended workers, kept promises. Pure.

The time budget runs while the job's leader is past its start-up: from an incarnation's first report with a phase other
than `Starting` until the leader ends, by the backend's clock. Queueing, starting, importing, back-off between
restarts and suspension are not counted. A leader that does not get past its start-up, or never reports (its image does
not use the trainer library), is counted from its start once `Timing.start_up_allowance` is over, so a leader that sends
no reports does not hold GPUs for free. GPU-seconds are the GPUs held, lent ones included, over the same time.

Figures never decrease. They are stored, so they survive a restart of the scheduler. Time that the scheduler did not
observe, because it was down or the leader vanished, is taken from the leader's own count and the run time of its
process. A leader's report may raise the count but never lowers it: one that reports its end and runs on is counted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum, auto

from espalier_core.types.allocation import Direction
from espalier_core.types.reasons import Reason
from espalier_core.types.report import TrainerPhase
from espalier_operator.job import ends
from espalier_operator.job.state import LAST_PHASES, JobState, Observation, Timing
from espalier_operator.model import Ended, JobTerms
from espalier_operator.model.nodes import trained_on


class Leader(Enum):
    """The activity of a job's leader, as the budgets distinguish it."""

    ABSENT = auto()
    STARTING = auto()
    """Its process runs and has not reported that it trains."""
    TRAINING = auto()
    """It adapts, evaluates or trains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetMeter:
    """The used budgets of one job at a moment of the scheduler's clock, in the clock's (budget) seconds."""

    used_seconds: float = 0.0
    gpu_seconds_used: float = 0.0
    read_at: float | None = None
    """Time of the last `advance`; None before the first and after a restart of the scheduler."""
    starting_since: float | None = None
    """Start of the leader's start-up; None while it is not starting."""

    def advance(
        self, now: float, leader: Leader, gpus: int, allowance: float, reported_seconds: float = 0.0
    ) -> BudgetMeter:
        """Return the meter at `now`.

        `leader` is the leader's activity since the last call, `gpus` the GPUs that the job has held since then;
        `allowance` is the start-up allowance in the clock's seconds; `reported_seconds` is the leader's own count.
        """
        before = now if self.read_at is None else min(self.read_at, now)
        since = None
        counted = 0.0
        if leader is Leader.TRAINING:
            counted = now - before
        elif leader is Leader.STARTING:
            since = before if self.starting_since is None else self.starting_since
            if now - since >= allowance:
                late = before - since < allowance
                counted = now - since if late else now - before
        used = max(self.used_seconds + counted, reported_seconds)
        return BudgetMeter(
            used_seconds=used,
            gpu_seconds_used=self.gpu_seconds_used + gpus * (used - self.used_seconds),
            read_at=now,
            starting_since=since,
        )


def look(state: JobState, seen: Observation, terms: JobTerms, now: float, timing: Timing) -> JobState:
    """Return the state after an observation at `now` of the job's workers and report."""
    if state.outcome is not None:
        return state
    if state.admitted_at is None:
        # Its last leader may take a while to end.
        return _with_budget(_count_reported(state, seen, terms, now), state, _reported(state, seen, now), terms)
    unwatched = _unwatched(state, seen, now)
    state = state.with_workers(terms.min_replicas)
    was_incomplete, state = state.incomplete, replace(state, incomplete=_is_incomplete(state, seen, terms))
    state = _watch(state, seen, now, completes=was_incomplete and not state.incomplete)
    before, state = state, _with_budget(_count(state, seen, terms, now, timing), state, unwatched, terms)
    was_away = before.counted_until is not None and now - before.counted_until > timing.gap
    if state.trained and not before.trained:
        took = None if state.admitted_at is None else max(0.0, now - state.admitted_at)
        started = before.start_seconds if was_away else took
        state = replace(state, unplaced=0, hold_until=None, unpinned=False, start_seconds=started)
    if seen.invalid and state.ended is None and not (state.trained or state.used_seconds):
        # A job that has trained never fails by this: it waits again, and whoever changed its pods may change them back.
        state = replace(state, ended=Ended(reason=Reason.INVALID_SPEC, failed=True, message=seen.invalid))
    if state.gated != seen.gated:
        # Its GPUs are granted, and its deadline begins, when all gates are gone.
        admitted_at = state.admitted_at if seen.gated or state.trained else now
        state = replace(state, gated=seen.gated, admitted_at=admitted_at)
    if state.nodes_by is not None and seen.base and all(worker is not None and worker.node for worker in seen.base):
        state = replace(state, node_group="", nodes_by=None, admitted_at=now)  # its deadline begins
    refused_since = _since(state.refused_since, seen.refused, now)
    down_since = _down_since(state, seen, now, was_away=was_away)
    if (refused_since, down_since) != (state.refused_since, state.down_since):
        state = replace(state, refused_since=refused_since, down_since=down_since)
    if state.not_before is not None and now >= state.not_before:
        state = replace(state, not_before=None)
    if state.promised_until is not None and seen.extra_bound >= state.extra:
        # Kept: workers that are missing from now on are lost.
        state = replace(state, promised_until=None, unplaced=0, hold_until=None)
    if state.promised_until is not None and state.granted_at is not None and seen.extra_refused:
        given_up_at = min(state.promised_until, state.granted_at + timing.refusal)
        state = replace(state, promised_until=given_up_at)
    for index in range(terms.min_replicas):
        if state.ended is None:
            state = ends.judge(state, seen, index, terms, now, timing)
    return _announce(_blame(state, seen, now, timing), seen, terms)


def _blame(state: JobState, seen: Observation, now: float, timing: Timing) -> JobState:
    """Blame nodes for extra workers that ended there, once for each loan; clear nodes on which the job trains."""
    for worker in seen.extra_ended:
        if all(blame.node != worker.node or blame.loan < worker.loan for blame in state.blames):
            message = "" if worker.end is None else worker.end.message
            state = ends.blaming_node(state, worker, f"an extra worker: {message}", now, timing)
    since = _running_since(state, seen)
    if not state.blames or since is None or now - since < timing.start_up_allowance or _is_starting(seen):
        return state
    nodes = {worker.node for worker in seen.base if worker is not None and worker.running and worker.node is not None}
    return replace(state, blames=trained_on(state.blames, nodes))


def turning_points(state: JobState, seen: Observation, timing: Timing) -> Iterator[float]:
    """Yield the times, some of them past, at which the result of `look` may change without a new observation."""
    if not state.active or state.ended is not None:
        return
    if state.not_before is not None:
        yield state.not_before
    if state.promised_until is not None:
        yield state.promised_until
    yield from ends.turning_points(state, seen, timing)
    since = _running_since(state, seen)
    if since is not None and _is_starting(seen):
        yield since + _allowance(state, timing)


def leader_of(state: JobState, seen: Observation, now: float, timing: Timing) -> Leader:
    """Return the leader's activity for the budgets; one without reports beyond the allowance counts as training."""
    if not seen.leader_runs or seen.leader_is_silent or seen.phase in LAST_PHASES:
        return Leader.ABSENT
    if _stands_still(state, seen):
        return Leader.STARTING
    return Leader.STARTING if _is_starting(seen) and not _is_silent(state, seen, now, timing) else Leader.TRAINING


def _is_incomplete(state: JobState, seen: Observation, terms: JobTerms) -> bool:
    """Return `JobState.incomplete`: a worker that is gated, refused or waits for a node keeps the others waiting."""
    workers = (
        worker for index, worker in enumerate(seen.base[: terms.min_replicas]) if index not in state.completed_workers
    )
    return not state.trained and not all(
        worker is not None and (worker.running or worker.end is not None) for worker in workers
    )


def _stands_still(state: JobState, seen: Observation) -> bool:
    """Return whether the budgets stand still because base workers are missing and no report shows training."""
    return state.incomplete and (seen.program or _is_starting(seen))


def _complete_since(state: JobState, seen: Observation) -> float | None:
    """Return the start of the leader; before the job has trained, of the last of its base workers to start."""
    workers = (seen.leader,) if state.trained else seen.base
    return max((each.started_at for each in workers if each is not None and each.started_at is not None), default=None)


def _since(before: float | None, holds: bool, now: float) -> float | None:
    """Return the start of a condition: `before`, or `now` if it is new; None where it does not hold."""
    if not holds:
        return None
    return now if before is None else before


def _down_since(state: JobState, seen: Observation, now: float, *, was_away: bool) -> float | None:
    """Return the time since which a job that has trained and goes on has no running leader; None while it has one.

    While the scheduler was away, another leader may have trained and ended: its last report then gives the time, and
    at no other time, as reports would keep GPUs for a job whose leader cannot start.
    """
    is_down = state.trained and not (seen.leader_runs or seen.gated or state.ending)
    since = _since(state.down_since, is_down, now)
    if since is None or not was_away or seen.report is None or seen.report.phase is TrainerPhase.STARTING:
        return since
    return max(since, min(seen.reported_at, now))


def _announce(state: JobState, seen: Observation, terms: JobTerms) -> JobState:
    """Announce running extra workers to the leader, which decides only about GPUs that are there."""
    running = min(state.extra, seen.extra_running)
    if state.ending or state.reclaim is not None or running <= state.announced(terms):
        return state
    return state.granting(terms.min_replicas + running, Direction.UP, Reason.EXTRA_GPUS_GRANTED, terms)


def _watch(state: JobState, seen: Observation, now: float, *, completes: bool) -> JobState:
    """Record when the current leader was first seen running, and when it first reported its end."""
    leader = seen.leader
    if leader is None:
        return state
    watch = state.watch_of(leader.id)
    if seen.leader_runs and (watch.since is None or completes):
        # The scheduler may have been away when it started. A start in the future (the node's clock is ahead) is now.
        began = _complete_since(state, seen)
        watch = replace(watch, since=max(watch.since or 0.0, now if began is None else min(began, now)))
    if seen.leader_is_silent or _stands_still(state, seen):
        watch = replace(watch, since=now)  # it may have ended unseen: its earlier run does not count as a start-up
    watch = replace(watch, heard=watch.heard or seen.fresh, out_of_reach=seen.leader_is_silent)
    if watch.done_since is None and seen.phase in LAST_PHASES:
        watch = replace(watch, done_since=now)
    return state if watch == state.watch else replace(state, watch=watch)


def _unwatched(state: JobState, seen: Observation, now: float) -> float:
    """Return the used seconds up to which nobody watched since the last observation: a leader's first report includes
    the use of its predecessors. Infinite if the leader's node reports again: the leader may have heard of nothing.
    """
    leader = seen.leader
    if leader is None or seen.leader_is_silent:
        return 0.0
    watch = state.watch_of(leader.id)
    if watch.out_of_reach:
        return math.inf
    return _reported(state, seen, now) if seen.fresh and not watch.heard else 0.0


def _is_silent(state: JobState, seen: Observation, now: float, timing: Timing) -> bool:
    """Return whether the leader has run past the start-up allowance without a report that it trains."""
    since = _running_since(state, seen)
    return _is_starting(seen) and since is not None and now - since >= _allowance(state, timing)


def _running_since(state: JobState, seen: Observation) -> float | None:
    return state.watch_of(seen.leader.id).since if seen.leader is not None and seen.leader_runs else None


def _overstays(state: JobState, seen: Observation, now: float, timing: Timing) -> bool:
    """Return whether the leader still runs a while after it reported that it stopped or failed.

    A leader that reports completion does not count: the job ends soon, whatever its process does.
    """
    done_since = ends.done_since(state, seen)
    says_so = seen.leader_runs and seen.phase in (TrainerPhase.STOPPED, TrainerPhase.FAILED)
    return says_so and done_since is not None and now - done_since > timing.leave


def _allowance(state: JobState, timing: Timing) -> float:
    return 0.0 if state.stopped_itself else timing.start_up_allowance


def _is_starting(seen: Observation) -> bool:
    return seen.phase is TrainerPhase.STARTING


def _count(state: JobState, seen: Observation, terms: JobTerms, now: float, timing: Timing) -> JobState:
    leader = seen.leader
    started = None if leader is None else _complete_since(state, seen)
    began = now if started is None else started
    # If the scheduler was away while this leader ran, count the leader's run time, and nothing before it.
    since = _running_since(state, seen)
    earliest = now - timing.gap if began > now else began if since is None else min(began, since)
    read_at = now if state.counted_until is None else max(state.counted_until, earliest)
    meter = BudgetMeter(
        used_seconds=state.used_seconds,
        gpu_seconds_used=state.gpu_seconds_used,
        read_at=read_at,
        starting_since=min(began, now) if since is None else since,
    )
    # Extra workers are charged when they have their GPUs: some may never get them.
    workers = max(0, state.needed(terms).min_replicas - seen.gated) + min(state.extra, seen.extra_bound)
    gpus = workers * terms.gpus_per_worker
    counted_until = now
    if _stands_still(state, seen):
        kind, until = Leader.ABSENT, now
    elif leader is not None and leader.end is not None:
        # Its own count holds, or its whole run time if it was past the allowance; a program has no count of its own.
        kind = Leader.STARTING if _is_starting(seen) else Leader.TRAINING if seen.program else Leader.ABSENT
        until = max(read_at, min(now, now if leader.end.at is None else leader.end.at))
    elif seen.leader_is_silent:
        # It may have ended. Count up to its last report, and the rest once it reports again.
        trains = seen.fresh and seen.phase not in (TrainerPhase.STARTING, *LAST_PHASES)
        kind = Leader.TRAINING if trains else Leader.ABSENT
        until = counted_until = max(read_at, min(seen.reported_at, now))
    else:
        kind, until = leader_of(state, seen, now, timing), now
        silent = kind is Leader.TRAINING and _is_starting(seen)
        unwatched = now - read_at > timing.gap and now - seen.reported_at > timing.quiet
        if kind is Leader.TRAINING and unwatched and (seen.fresh or not silent) and not seen.program:
            # Nobody watched: it ran up to its last report, and may have ended since, unseen by its node as well.
            until = max(read_at, min(seen.reported_at, now))
        if _overstays(state, seen, now, timing):
            kind = Leader.TRAINING
        if silent:
            kind = Leader.STARTING  # counted from its start, by the allowance
    meter = meter.advance(until, kind, gpus, _allowance(state, timing), _reported(state, seen, now))
    return replace(
        state,
        used_seconds=meter.used_seconds,
        gpu_seconds_used=meter.gpu_seconds_used,
        counted_until=counted_until,
        trained=state.trained or _has_trained(state, seen, now, timing),
    )


def _count_reported(state: JobState, seen: Observation, terms: JobTerms, now: float) -> JobState:
    more = _reported(state, seen, now) - state.used_seconds
    if more <= 0:
        return state
    gpus = state.needed(terms).min_replicas * terms.gpus_per_worker
    return replace(state, used_seconds=state.used_seconds + more, gpu_seconds_used=state.gpu_seconds_used + more * gpus)


def _with_budget(state: JobState, before: JobState, unwatched: float, terms: JobTerms) -> JobState:
    """Return the state with the end of the time budget.

    A budget that is lowered to less than is used ends now, so that the leader has the usual time to evaluate. The same
    holds for a budget that was used up since `before` while nobody watched, up to `unwatched` used seconds, but only
    once: further reports of use do not extend it.
    """
    known = terms.time_budget_seconds if state.budget_end_seconds is None else state.budget_end_seconds
    end = max(terms.time_budget_seconds, min(state.used_seconds, known))
    if before.used_seconds <= end < state.used_seconds <= unwatched:
        end = state.used_seconds
    return state if end == state.budget_end_seconds else replace(state, budget_end_seconds=end)


def _reported(state: JobState, seen: Observation, now: float) -> float:
    """Return the used seconds reported by the leaders, former ones included, limited to the age of the job."""
    most = now if state.submitted_at is None else now - state.submitted_at
    return 0.0 if seen.report is None else min(seen.report.used_seconds, max(0.0, most))


def _has_trained(state: JobState, seen: Observation, now: float, timing: Timing) -> bool:
    if leader_of(state, seen, now, timing) is Leader.TRAINING:
        return True
    if seen.program:
        return seen.fresh and not state.incomplete
    report = seen.report if seen.fresh else None
    return report is not None and (report.phase is TrainerPhase.COMPLETED or report.step > 0)
