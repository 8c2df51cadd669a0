"""The loop's backend for Kubernetes. One reconcile, in order:

1. `watch.informer` puts objects from the API server into `watch.store`, and wakes the loop.
2. `loop.SchedulerLoop.tick` calls `observe`. Each `state.managed_job` reads its pods and its report
   (`job.progress`), and `snapshot.assemble` makes one snapshot of all jobs.
3. `planner.plan` decides by the scheduling policy.
4. `apply` changes the state of a job for each action (`job.transitions.after`).
5. `planned` queues the jobs that have pending writes or steps (`apply.workqueue`).
6. `apply.writer` writes the status of a job first, and then takes the steps that its state needs (`apply.steps`).

Between two plans, `sync_figures` observes changed jobs, and lets them write the direct consequences: figures, and
running extra workers (`state.due`).

`observe`, `apply` and `sync_figures` make no requests. Requests are made by flushes, at most one task per job, which
start when a plan is made, or by `sync_figures`. So a job whose namespace answers slowly does not delay other jobs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from espalier_operator.clock import Backoff, Clock
from espalier_operator.kube.apply.queue_statuses import QueueStatuses
from espalier_operator.kube.apply.workqueue import WorkQueue
from espalier_operator.kube.apply.writer import JobWriter
from espalier_operator.kube.audit import AuditLog
from espalier_operator.kube.metrics.measurements import Signals
from espalier_operator.kube.metrics.series import LiveJob, live
from espalier_operator.kube.objects.events import StartTrouble
from espalier_operator.kube.objects.pods import Pod
from espalier_operator.kube.settings import KubeSettings
from espalier_operator.kube.snapshot import assemble
from espalier_operator.kube.state.due import NEVER, SOON, FigurePace, FlushPriority, PendingChanges, plan_due_in
from espalier_operator.kube.state.managed_job import ManagedJob
from espalier_operator.kube.state.progress import Poster, ProgressSource
from espalier_operator.kube.watch.store import Store
from espalier_operator.loop import BackendError
from espalier_operator.model import NOWHERE, Rules, Snapshot
from espalier_operator.model.actions import Action, Plan
from espalier_operator.policies.memory import RecentUse
from espalier_operator.policies.view import Share

logger = logging.getLogger(__name__)

LISTS_KEPT: Final = 2.5
"""Maximum age of the last complete list, in resync intervals; with an older one the cluster counts as unknown."""


class KubeBackend:
    """Implements `espalier_operator.loop.Backend` over a `Store`."""

    def __init__(
        self,
        store: Store,
        writer: JobWriter,
        settings: KubeSettings,
        clock: Clock,
        rules: Rules,
        signals: Signals,
        notice: Callable[[], None],
        recent_use: RecentUse,
        audit: AuditLog | None = None,
        queue_statuses: QueueStatuses | None = None,
    ) -> None:
        """Take the parts; `signals` measures the arrival of decisions, `notice` reports changes to the loop."""
        self._recent_use, self._audit, self._queue_statuses = recent_use, audit, queue_statuses
        self._signals, self._notice = signals, notice
        self._store, self._writer, self._settings, self._clock, self._rules = store, writer, settings, clock, rules
        self.jobs: dict[str, ManagedJob] = {}
        """Existing jobs that are not being deleted, by UID."""
        self._deleted: dict[str, Backoff] = {}
        """Jobs that are being deleted and held by a foreign finalizer, by UID."""
        self._uids: dict[str, str] = {}
        self._unreadable: dict[str, str] = {}
        self.queue = WorkQueue(self._flush)
        self._pace = FigurePace(settings.persist_seconds)
        self.snapshot: Snapshot | None = None
        """The snapshot of the last plan."""
        self.shares: Sequence[Share] = ()
        """Shares of the last plan, in the order in which they are served."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = 0.0

    # ---- observation

    async def observe(self) -> Snapshot:
        """Return all jobs with workers, nodes, and foreign pods. Raises `BackendError` while not all is known."""
        now = self._clock.now()
        if unknown := self._unknown(now):
            raise BackendError(unknown)
        self._store.take_others_changed()
        self._update(now)
        self._notice_overwriting()
        self._look(self.jobs.values(), now)
        return self._recent_use.seen(assemble(self.jobs.values(), self._store, now, self._rules))

    def sync_figures(self) -> float:
        """Observe changed jobs, and queue their writes that need no plan.

        Return the seconds within which the changes need a plan, infinity for never.
        """
        now = self._clock.now()
        if self._unknown(now):
            return SOON
        others, came_or_went = self._store.take_others_changed(), self._update(now)
        within = SOON if others or came_or_went else NEVER
        looked = [(job, job.plan_inputs()) for job in self.jobs.values() if job.wants_look(now)]
        self._look([job for job, _ in looked], now)
        for job, before in looked:
            due_in = plan_due_in(before, job.plan_inputs())
            if due_in > SOON:  # otherwise the plan comes first
                self._queue_if_due(job, now)
            within = min(within, due_in)
        self._set_timer(now)
        return within

    def _update(self, now: float) -> bool:
        """Update changed jobs; return whether jobs came, went, or changed their specification."""
        before = {}
        for uid in self._store.take_changed():
            before[uid] = self.jobs[uid].job if uid in self.jobs else None
            self._update_job(uid, now)
        for uid in self._store.take_reported():
            if uid in self.jobs:
                self.jobs[uid].mark_dirty(PendingChanges.REPORT)
        return any(uid not in self.jobs or self.jobs[uid].job is not job for uid, job in before.items())

    def _look(self, jobs: Collection[ManagedJob], now: float) -> None:
        """Update jobs to `now`, and measure the signals to their leaders."""
        granted = []
        for job in jobs:
            before = job.state
            job.look(now)
            if job.state is not before and job.state.grant.generation != before.grant.generation and job.state.active:
                granted.append(job)
        self._signals.observed()
        for job in granted:
            self._signals.granted(job.uid, job.state.grant.generation, now, job.key)
        for uid in self._signals.waiting():
            facts = self.jobs[uid].facts if uid in self.jobs else None
            if facts is None or facts.finished:
                self._signals.forget(uid)
            else:
                self._signals.acknowledged(uid, facts.acknowledged_generation, now)

    def _unknown(self, now: float) -> str:
        """Return a description of missing or outdated facts that a plan needs; '' where all are known."""
        if unknown := self._store.unknown():
            return f"not all is known yet: {', '.join(unknown)} were not listed"
        age = now - (self._store.listed_at or 0.0)
        if age > LISTS_KEPT * self._settings.resync_seconds:
            return f"the last complete list is {age:.0f} s old: the API server returns none"
        return ""

    def _update_job(self, uid: str, now: float) -> None:
        """Update the state of one job from the store."""
        seen, job = self._store.job(uid), self.jobs.get(uid)
        if seen is None or seen.deleting:
            self._unreadable.pop(uid, None)
            self._deleted.pop(uid, None)
            if seen is not None and not seen.orphans:
                self._deleted[uid] = Backoff()
            if job is not None:
                del self.jobs[uid]
                if self._uids.get(job.key) == uid:
                    del self._uids[job.key]
            return
        if job is None:
            try:
                job = ManagedJob(seen, self._store, self._settings, now, self._pace)
            except ValueError as error:
                if self._unreadable.get(uid) != str(error):
                    self._unreadable[uid] = str(error)
                    logger.error("%s: cannot read its status, so it is left alone: %s", seen.key, error)
                return
            self.jobs[uid] = job
            self._uids[seen.key] = uid
        else:
            job.update(seen)
        job.mark_dirty(PendingChanges.PODS, FlushPriority.CHANGES)

    def _notice_overwriting(self) -> None:
        """Write the status of jobs again if another client has changed it."""
        for uid in list(self._store.overwritten):
            job, seen = self.jobs.get(uid), self._store.job(uid)
            if self.queue.is_busy(uid):
                continue  # it may be our own write, whose answer is on its way
            self._store.overwritten.discard(uid)
            if job is not None and seen is not None and seen.status != job.answered:
                logger.warning("%s: another client has changed its status; writing it again", job.key)
                job.mark_dirty(PendingChanges.NONE, FlushPriority.REWRITE)

    def live(self) -> list[LiveJob]:
        """Return the existing jobs, for metrics."""
        return [live(job) for job in self.jobs.values()]

    def sources(self) -> list[ProgressSource]:
        """Return the sources from which to read the progress of programs."""
        return [source for job in self.jobs.values() if (source := job.source()) is not None]

    def take_reading(self, source: ProgressSource, values: Mapping[str, float] | None) -> None:
        """Record values read from a program; the last ones allow its end to be judged."""
        job = self.jobs.get(source.job)
        if job is not None:
            job.take_reading(source, values, self._clock.now())
            if source.leader.done:
                self._notice()

    def poster(self, namespace: str, name: str) -> Poster | None:
        """Return the leader that may post the progress of a program; None: none."""
        job = self.jobs.get(self._uids.get(f"{namespace}/{name}", ""))
        return None if job is None else job.poster()

    def take_post(self, poster: Poster, values: Mapping[str, float]) -> None:
        """Record values posted by the leader of a program."""
        job = self.jobs.get(poster.job.uid)
        if job is not None:
            job.take_post(values, self._clock.now())

    def waiting_pods(self) -> list[tuple[str, Pod]]:
        """Return the pods that their nodes have not started yet, with the UIDs of their jobs."""
        return [(job.uid, pod) for job in self.jobs.values() for pod in job.waiting_pods()]

    def take_start_trouble(self, job: str, pod: str, trouble: StartTrouble | None) -> None:
        """Record the obstacle for which a pod's node cannot start it; None: none is known."""
        known = self.jobs.get(job)
        if known is not None and known.take_start_trouble(pod, trouble):
            self._notice()

    # ---- decisions

    async def apply(self, action: Action) -> None:
        """Record the decision in the job's state, from which all else is derived."""
        job = self.jobs.get(self._uids.get(action.job, ""))
        if job is not None:
            job.act(action)
            logger.info("%s", action)

    def planned(self, snapshot: Snapshot, plan: Plan) -> None:
        """Record the refusals, and queue the jobs that have pending writes or steps."""
        self.snapshot, self.shares = snapshot, plan.shares
        if self._audit is not None:
            self._audit.add(snapshot, plan)
        if self._queue_statuses is not None:
            self._queue_statuses.take(snapshot, plan)
        now = self._clock.now()
        self._pace.share(sum(job.state.active for job in self.jobs.values()))
        for job in self.jobs.values():
            refusal = plan.refusals.get(job.key)
            job.refuse(*((None,) if refusal is None else (refusal.reason, refusal.workers)))
            job.place(plan.placements.get(job.key, NOWHERE))
            self._queue_if_due(job, now)
        for uid, trying in self._deleted.items():
            if not trying.holds(now):
                self.queue.add(uid, urgent=False)
        self._set_timer(now)

    def _queue_if_due(self, job: ManagedJob, now: float) -> None:
        if job.due and not job.writing.holds(now):
            self.queue.add(job.uid, urgent=job.due >= FlushPriority.CHANGES)

    # ---- writes

    async def _flush(self, uid: str) -> None:
        job = self.jobs.get(uid)
        if job is None:
            await self._end_deleted(uid)
            return
        await self._writer.flush(job)
        if job.news & (PendingChanges.PODS | PendingChanges.REPORT):
            self._notice()
        # Only this job is examined: otherwise the cost of each flush would grow with the number of jobs.
        if job.due_at is not None and (self._timer is None or job.due_at < self._timer_due):
            self._set_timer_at(job.due_at, self._clock.now())

    async def _end_deleted(self, uid: str) -> None:
        """End the pods of a job that is being deleted: its budget is not counted, nor are its loans reclaimed."""
        trying, seen = self._deleted.get(uid), self._store.job(uid)
        if trying is None or seen is None:
            return
        try:
            await self._writer.end_pods(self._store.pods_of(seen.ref))
            trying.succeeded()
        except BackendError as error:
            wait = trying.failed(self._clock.now())
            logger.warning("%s: cannot end its pods: %s; retrying in %.0f s", seen.key, error, wait)

    def _set_timer(self, now: float) -> None:
        """Set the timer to the time when the first job is due."""
        dues = (job.due_at for job in self.jobs.values())
        due = min((due for due in dues if due is not None), default=None)
        if due is None:
            self._cancel_timer()
        else:
            self._set_timer_at(due, now)

    def _set_timer_at(self, due: float, now: float) -> None:
        """Set the timer to `due`. A notice that is too early does no harm."""
        self._cancel_timer()
        seconds = max(0.0, self._clock.wall_seconds(due - now))
        self._timer = asyncio.get_running_loop().call_later(seconds, self._timer_rings)
        self._timer_due = due

    def _timer_rings(self) -> None:
        self._timer = None
        self._notice()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def close(self, seconds: float) -> None:
        """Finish pending writes for at most this many seconds."""
        self._cancel_timer()
        await self.queue.close(seconds)
