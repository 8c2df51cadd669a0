"""Decisions by each job alone: its end, its stop or requeue, and the extra workers that it gives back."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from espalier_core.base import number_of
from espalier_core.types.reasons import SENTENCES, Reason
from espalier_operator.model import REFUSALS, JobFacts, JobTerms, Promise, Rules, Stopping
from espalier_operator.model.actions import Action, Fail, Finish, NoticeReclaim, Refusal, ReleaseExtra, Requeue, Stop
from espalier_operator.model.queues import Admission, QueueUsage
from espalier_operator.policies.decisions import LendingOrder

RESUMED_LATER: Final = frozenset(
    (
        Reason.SUSPENDED,
        Reason.QUOTA_RECLAIMED,
        Reason.PREEMPTED_BY_POLICY,
        Reason.NODE_DEPARTING,
        Reason.EVICTION_REQUESTED,
        Reason.EVICTED_BY_KUEUE,
    )
)
"""Reasons of a stop after which the job waits again, with its used budget kept."""


def ending(job: JobFacts, now: float, rules: Rules, withdrawn: Reason | None = None) -> Action | None:
    """Return the action that ends or stops `job`; None: it continues. `withdrawn` is the reason of its lost quota."""
    if job.ended is not None:
        kind = Fail if job.ended.failed else Finish
        return kind(job=job.key, reason=job.ended.reason, message=job.ended.message)
    if job.failures > job.terms.backoff_limit:
        failures = number_of(job.failures, "failure")
        message = f"{failures}, backoffLimit {job.terms.backoff_limit}; the last: {job.last_failure}"
        return Fail(job=job.key, reason=Reason.CRASH_LOOP, message=message)
    if job.terms.max_preemptions is not None and job.preemptions > job.terms.max_preemptions:
        message = f"{number_of(job.preemptions, 'preemption')}, maxPreemptions {job.terms.max_preemptions}"
        return Fail(job=job.key, reason=Reason.TOO_MANY_PREEMPTIONS, message=message)
    if job.terms.program:
        if job.used_at(now) >= job.terms.time_budget_seconds and job.stopping is None:
            return _end_of_budget(job, Reason.BUDGET_EXHAUSTED, now, rules)
    elif job.used_at(now) >= _enforced_at(job, rules):
        if job.failures and job.stopping is None and not job.leader_running:
            message = f"its time budget is used up, and its trainer has failed: {job.last_failure}"
            return Fail(job=job.key, reason=Reason.TRAINER_FAILED, message=message)
        return _forced(job, Reason.BUDGET_ENFORCED)
    if job.stopping is not None:
        if job.leader_running and now < _stopped_by(job, job.stopping, rules):
            return None
        if job.stopping.reason in RESUMED_LATER:
            said = job.external is not None and job.stopping.reason is Reason.EVICTED_BY_KUEUE
            message = job.external.message if said and job.external is not None else ""
            return Requeue(job=job.key, reason=job.stopping.reason, message=message)
        return _forced(job, job.stopping.reason)
    if _gpu_budget_used_up(job, now):
        return _end_of_budget(job, Reason.GPU_BUDGET_EXHAUSTED, now, rules)
    if job.admitted_at is None:
        return None
    if job.terms.suspend:
        return Stop(job=job.key, reason=Reason.SUSPENDED, deadline=now + stop_seconds(job.terms, rules))
    if withdrawn is not None:
        return Stop(job=job.key, reason=withdrawn, deadline=now + yield_seconds(job.terms, rules))
    return _end_of_start(job, now)


def turning_points(job: JobFacts, now: float, rules: Rules) -> Iterator[float]:
    """Yield the times at which time alone may change the result of `ending`."""
    if job.stopping is not None:
        yield _stopped_by(job, job.stopping, rules)
    if job.admitted_at is None:
        return
    if job.leader_running:
        end = job.terms.time_budget_seconds if job.terms.program else _enforced_at(job, rules)
        yield now + end - job.used_at(now)
        if job.terms.gpu_seconds_budget is not None and job.gpus_held:
            yield now + (job.terms.gpu_seconds_budget - job.gpu_seconds_at(now)) / job.gpus_held
    if (deadline := _starts_by(job)) is not None:
        yield deadline


def ends_by(job: JobFacts, now: float, rules: Rules) -> float:
    """Return the latest end of `job` if it runs, or starts now, apart from restarts and lost nodes."""
    if job.stopping is not None:
        return max(now, _stopped_by(job, job.stopping, rules))
    startup = 0.0 if job.leader_running and job.training else rules.startup_seconds
    evaluation = 0.0 if job.terms.program else rules.evaluation_seconds
    rest = _budget_end(job) + job.terms.grace_seconds + evaluation - job.used_at(now)
    gpus = job.terms.min_replicas * job.terms.gpus_per_worker
    if job.terms.gpu_seconds_budget is not None and gpus:
        rest = min(rest, (job.terms.gpu_seconds_budget - job.gpu_seconds_at(now)) / gpus + rules.stop_grace_seconds)
    return now + startup + max(0.0, rest)


def stop_seconds(terms: JobTerms, rules: Rules) -> float:
    """Return the seconds that a stopped job has to end in order; a program has the grace period of its pod."""
    return terms.grace_seconds if terms.program else rules.stop_grace_seconds


def yield_seconds(terms: JobTerms, rules: Rules) -> float:
    """Return the seconds that a job has to give its base GPUs back to others, at least its notice."""
    return max(stop_seconds(terms, rules), 0.0 if terms.program else terms.notice_seconds)


def admission_of(job: JobFacts, ledger: QueueUsage) -> Admission:
    """Return the owner of a job's quota."""
    return job.external or ledger


def is_held_back(job: JobFacts, now: float) -> bool:
    """Return whether nothing more is granted because the last grant could not be used."""
    return job.hold_until is not None and now < job.hold_until


def runs_until(job: JobFacts) -> float:
    """Return the end of the minimum runtime of an admitted job."""
    return (job.admitted_at or 0.0) + job.terms.min_runtime_seconds


def spared_until(holder: JobFacts, *, falls: bool = False) -> float:
    """Return the time before which the extra workers of a job are not reduced for shares, as they changed recently.

    Where they fall anyway, only the last increase counts.
    """
    changed = 0.0 if falls else holder.changed_at or 0.0
    return max(holder.granted_at or 0.0, changed) + holder.terms.min_runtime_seconds


def obstacle(job: JobFacts) -> Reason:
    """Return the reason for which a job's workers cannot start though GPUs are free for them."""
    return job.trouble if job.trouble in REFUSALS else Reason.UNSCHEDULABLE


def most_extra(terms: JobTerms) -> tuple[int, Reason]:
    """Return the maximum number of extra workers of a job, and the reason of that limit."""
    if terms.gpus_per_worker and not (terms.program or terms.adapts or terms.trains_together):
        return 0, Reason.ADAPTATION_OFF
    return (terms.max_replicas - terms.min_replicas if terms.gpus_per_worker else 0), Reason.AT_MAX_REPLICAS


def lendable(job: JobFacts, now: float, rules: Rules) -> int | Reason:
    """Return the number of further extra workers that an admitted job could use (≥ 1), or a reason to lend none."""
    terms = job.terms
    if job.stopping is not None:
        return job.stopping.reason
    if job.reclaim is not None:
        return Reason.RECLAIM_PENDING
    allowed, limit = most_extra(terms)
    most = allowed - job.extra
    if most <= 0:
        return limit
    if not job.has_reported:
        return Reason.NO_REPORT
    if not (job.leader_running and job.training):
        return Reason.STARTING
    least = rules.lend_min_fraction * terms.time_budget_seconds
    if job.remaining_at(now) < least:
        return Reason.TOO_LITTLE_BUDGET_LEFT
    if terms.gpu_seconds_budget is not None:
        affordable = (terms.gpu_seconds_budget - job.gpu_seconds_at(now)) / least - job.gpus_held
        most = min(most, math.floor(affordable / terms.gpus_per_worker))
        if most <= 0:
            return Reason.TOO_LITTLE_BUDGET_LEFT
    if is_held_back(job, now):
        return job.extra_trouble or Reason.UNSCHEDULABLE
    if job.lend_after is not None and now < job.lend_after:
        return Reason.EXTRA_WORKERS_LOST
    if job.changed_at is not None and now < job.changed_at + terms.cooldown_seconds:
        return Reason.COOLDOWN
    return most


def lendable_at(job: JobFacts, reason: Reason) -> float | None:
    """Return when time alone may end the refusal of `lendable` for `reason`; None where it will not."""
    match reason:
        case Reason.COOLDOWN if job.changed_at is not None:
            return job.changed_at + job.terms.cooldown_seconds
        case _ if reason in REFUSALS:
            return job.hold_until
        case Reason.EXTRA_WORKERS_LOST:
            return job.lend_after
        case _:
            return None


def _enforced_at(job: JobFacts, rules: Rules) -> float:
    """Return the used seconds at which the job is ended by force: its budget and a grace, longer for an evaluation."""
    evaluation = rules.evaluation_seconds if job.evaluating else 0.0
    return _budget_end(job) + job.terms.grace_seconds + evaluation


def _budget_end(job: JobFacts) -> float:
    return max(job.terms.time_budget_seconds, job.budget_end_seconds or 0.0)


def _starts_by(job: JobFacts) -> float | None:
    """Return the time by which an admitted job must train, first or again; None for no limit."""
    since = job.down_since if job.trained else job.admitted_at
    limit = job.terms.pre_running_deadline_seconds
    return None if since is None or limit is None or job.gated or job.nodes_by is not None else since + limit


def _end_of_start(job: JobFacts, now: float) -> Action | None:
    """Return the action on a start that takes too long: a job that has trained waits again, any other fails."""
    deadline, limit = _starts_by(job), job.terms.pre_running_deadline_seconds
    if deadline is None or limit is None or now < deadline:
        return None
    after = f"{now - deadline + limit:.0f} s after"
    cause = f": {job.last_failure or SENTENCES[job.trouble]}" if job.trouble is not None else ""
    known = None if job.trouble is Reason.STARTING else job.trouble
    reason = known or Reason.PRE_RUNNING_DEADLINE_EXCEEDED
    if job.trained:
        return Requeue(job=job.key, reason=reason, message=f"no leader trains {after} the last one ended{cause}")
    if job.refused_since is not None and reason is Reason.POD_REJECTED:  # what admission denies may pass
        return Requeue(job=job.key, reason=reason, message=job.last_failure)
    return Fail(job=job.key, reason=reason, message=f"{after} admission{cause}")


def _forced(job: JobFacts, reason: Reason) -> Action:
    """Return the forced end of a job; `reason` is used where its leader reports nothing."""
    if job.if_forced is None:
        return Finish(job=job.key, reason=reason)
    kind = Fail if job.if_forced.failed else Finish
    return kind(job=job.key, reason=job.if_forced.reason, message=job.if_forced.message)


def _stopped_by(job: JobFacts, stopping: Stopping, rules: Rules) -> float:
    """Return when a stopped job is ended by force; its last evaluation has as much time as after a time budget."""
    evaluates = job.evaluating and stopping.reason is Reason.GPU_BUDGET_EXHAUSTED
    return stopping.deadline + (rules.evaluation_seconds if evaluates else 0.0)


def _end_of_budget(job: JobFacts, reason: Reason, now: float, rules: Rules) -> Action:
    if job.admitted_at is None:
        return _forced(job, reason)
    return Stop(job=job.key, reason=reason, deadline=now + stop_seconds(job.terms, rules))


def _gpu_budget_used_up(job: JobFacts, now: float) -> bool:
    budget = job.terms.gpu_seconds_budget
    return budget is not None and job.gpu_seconds_at(now) >= budget


class PlanBuilder:
    """The actions and refusals of one plan."""

    def __init__(self, now: float) -> None:
        self._now = now
        self.actions: list[Action] = []
        self.refusals: dict[str, Refusal] = {}
        self.touched: set[str] = set()
        """Jobs with an action in this cycle: nothing is lent to them or reclaimed from them."""
        self._stopped, self._noticed = set[str](), set[str]()
        """Jobs that this plan stops, and those that it only gives notice."""
        self.wake_at: float | None = None

    def act(self, action: Action) -> None:
        """Add an action; a stop replaces the job's notice, as the job gives back its extra workers too."""
        if isinstance(action, Stop) and action.job in self._noticed:
            self.actions = [each for each in self.actions if each.job != action.job]
            self._noticed.remove(action.job)
        self.actions.append(action)
        if isinstance(action, Stop):
            self._stopped.add(action.job)
        elif isinstance(action, NoticeReclaim) and action.job not in self.touched:
            self._noticed.add(action.job)
        self.touched.add(action.job)

    def may_stop(self, job: JobFacts) -> bool:
        """Return whether this plan may stop a job: nothing has stopped it, and it has no action but a notice."""
        return job.stopping is None and (job.key not in self.touched or job.key in self._noticed)

    def is_stopped(self, job: JobFacts) -> bool:
        """Return whether a job is stopped, by an earlier plan or this one: it has time to end in order."""
        return job.stopping is not None or job.key in self._stopped

    def refuse(self, job: JobFacts, reason: Reason, *, starts_by: float | None = None, workers: int = 0) -> None:
        """Record the reason for which the job gets nothing (more)."""
        self.refusals[job.key] = Refusal(job=job.key, reason=reason, starts_by=starts_by, workers=workers)

    def wake(self, time: float | None) -> None:
        """Request the next plan at `time` at the latest; None: no request."""
        if time is not None and time > self._now and (self.wake_at is None or time < self.wake_at):
            self.wake_at = time

    def wait(self, time: float) -> bool:
        """Request a plan at `time` and return True; False where it has come."""
        self.wake(time)
        return self._now < time


class JobLimits:
    """Decisions about the jobs of one cycle, one by one."""

    def __init__(self, record: PlanBuilder, ledger: QueueUsage, rules: Rules, now: float) -> None:
        self._record, self._ledger, self._rules, self._now = record, ledger, rules, now

    def within_limits(self, job: JobFacts) -> JobFacts:
        """Return an admitted job with its priority limited by its queue; a waiting job would be refused instead."""
        if job.admitted_at is None or not self._ledger.limits:
            return job
        priority = self._ledger.priority(job.claim)
        if priority == job.terms.priority:
            return job
        return replace(job, terms=replace(job.terms, priority=priority))

    def end(self, job: JobFacts) -> None:
        """Add the action that ends, stops or requeues the job, if there is one."""
        withdrawn = None if job.admitted_at is None else admission_of(job, self._ledger).withdrawal(job.claim)
        action = ending(job, self._now, self._rules, withdrawn)
        for time in turning_points(job, self._now, self._rules):
            self._record.wake(time)
        if action is not None:
            self._record.act(action)

    def release_extra(self, job: JobFacts, order: LendingOrder, promise: Promise | None, seen: int) -> int:
        """Release extra workers that are given back, overdue or gone, and reclaim those that the job must not hold.

        `seen` is the number of its extra workers that exist. Return the number that stay.
        """
        if job.reclaim is not None:
            acknowledged = job.acknowledged_generation >= job.generation
            if acknowledged or self._now >= job.reclaim.deadline:
                reason = Reason.RECLAIM_ACKNOWLEDGED if acknowledged else Reason.RECLAIM_FORCED
                self._record.act(
                    ReleaseExtra(job=job.key, extra=job.reclaim.extra, forced=not acknowledged, reason=reason)
                )
            else:
                self._record.wake(job.reclaim.deadline)
            return job.reclaim.extra
        allowed, limit = most_extra(job.terms)
        withdrawn = 0 if job.external is None else job.external.extra_withdrawn
        if withdrawn and job.extra - withdrawn < allowed:
            allowed, limit = max(0, job.extra - withdrawn), Reason.EVICTED_BY_KUEUE
        if job.extra > allowed and not self._record.is_stopped(job):
            deadline = self._now + job.terms.notice_seconds
            self._record.act(NoticeReclaim(job=job.key, extra=allowed, deadline=deadline, reason=limit))
            self._record.wake(deadline)
            return allowed
        kept = order.kept_extra(job)
        if job.extra > kept and not (self._record.is_stopped(job) or self._record.wait(spared_until(job))):
            deadline = self._now + job.terms.notice_seconds
            self._record.act(NoticeReclaim(job=job.key, extra=kept, deadline=deadline, reason=Reason.HELD_BY_POLICY))
            self._record.wake(deadline)
            return kept
        if promise is not None and self._record.wait(promise.expires_at):
            return job.extra
        if seen < job.extra:
            reason = Reason.GPU_LOST if promise is None else job.extra_trouble or Reason.UNSCHEDULABLE
            self._record.act(ReleaseExtra(job=job.key, extra=seen, forced=True, reason=reason))
        return min(seen, job.extra)
