"""What each job alone decides: its end, and which extra workers it gives back."""

from __future__ import annotations

from dataclasses import replace

from espalier_core.types.reasons import Reason
from espalier_operator.model import JobFacts, Promise, Rules
from espalier_operator.model.actions import NoticeReclaim, ReleaseExtra, Stop
from espalier_operator.model.queues import Ledger
from espalier_operator.planner.builder import Record
from espalier_operator.planner.lifecycle import ending, most_extra, turning_points
from espalier_operator.policies.order import Order


class Settling:
    """The jobs of one tick, one by one."""

    def __init__(self, record: Record, ledger: Ledger, rules: Rules, now: float) -> None:
        self._record, self._ledger, self._rules, self._now = record, ledger, rules, now

    def within_limits(self, job: JobFacts) -> JobFacts:
        """Return a job with the priority that its queue allows once it runs; a waiting one would be refused."""
        if job.admitted_at is None or not self._ledger.limits:
            return job
        priority = self._ledger.priority(job.claim)
        if priority == job.terms.priority:
            return job
        return replace(job, terms=replace(job.terms, priority=priority))

    def ends(self, job: JobFacts) -> bool:
        """Plan the job's end or stop; return True where nothing else is to be planned for it."""
        action = ending(job, self._now, self._rules)
        for time in turning_points(job, self._now, self._rules):
            self._record.wake(time)
        if action is None:
            return False
        self._record.act(action)
        return not isinstance(action, Stop)

    def extra_kept(self, job: JobFacts, order: Order, promise: Promise | None, seen: int) -> int:
        """Release what was given back, is overdue or is gone, and ask for what the job may no longer hold.

        `seen` of its extra workers are there. Return how many remain for good.
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
        if job.extra > allowed and job.stopping is None:
            deadline = self._now + job.terms.notice_seconds
            self._record.act(NoticeReclaim(job=job.key, extra=allowed, deadline=deadline, reason=limit))
            self._record.wake(deadline)
            return allowed
        kept = order.kept_extra(job)
        if job.extra > kept and job.stopping is None and not self.is_quiet(job):
            deadline = self._now + job.terms.notice_seconds
            self._record.act(NoticeReclaim(job=job.key, extra=kept, deadline=deadline, reason=Reason.HELD_BY_POLICY))
            self._record.wake(deadline)
            return kept
        if promise is not None and self._now < promise.expires_at:
            self._record.wake(promise.expires_at)
            return job.extra
        if seen < job.extra:
            reason = Reason.GPU_LOST if promise is None else job.extra_trouble or Reason.UNSCHEDULABLE
            self._record.act(ReleaseExtra(job=job.key, extra=seen, forced=True, reason=reason))
        return min(seen, job.extra)

    def is_quiet(self, holder: JobFacts, *, falls: bool = False) -> bool:
        """Return whether the extra workers of a job are not reduced for shares yet: they have just changed.

        Where they fall anyway, only the last time that they rose counts.
        """
        runtime = holder.terms.min_runtime_seconds
        risen, changed = (holder.granted_at or 0.0) + runtime, (holder.changed_at or 0.0) + runtime
        quiet_until = risen if falls else max(risen, changed)
        self._record.wake(quiet_until)
        return self._now < quiet_until
