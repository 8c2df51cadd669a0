"""Kubernetes behind the loop: what is known becomes a snapshot, what is decided becomes a record, and that is written.

`observe` and `apply` only think; the API server is spoken to by flushes, one task a job at most, started when a plan
is made. So a job whose namespace answers slowly keeps nobody else waiting.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from espalier_operator.actions import Action, GrantExtra, Plan
from espalier_operator.clock import Clock
from espalier_operator.facts import Rules, Snapshot
from espalier_operator.kube.flusher import Flusher
from espalier_operator.kube.metrics.series import LiveJob
from espalier_operator.kube.settings import KubeSettings
from espalier_operator.kube.signals import Signals
from espalier_operator.kube.snapshot import assemble
from espalier_operator.kube.tracked import Tracked
from espalier_operator.kube.watch.store import Store
from espalier_operator.kube.writer import Writer
from espalier_operator.loop import BackendError

logger = logging.getLogger(__name__)

LISTS_KEPT: Final = 2.5
"""How many resync intervals old the last list of everything may be before the world counts as unknown."""


class KubeBackend:
    """Implements `espalier_operator.loop.Backend` over a `Store`."""

    def __init__(
        self, store: Store, writer: Writer, settings: KubeSettings, clock: Clock, rules: Rules, signals: Signals
    ) -> None:
        """Join the parts; `signals` times what jobs are told."""
        self._signals = signals
        self._store, self._writer, self._settings, self._clock, self._rules = store, writer, settings, clock, rules
        self.jobs: dict[str, Tracked] = {}
        """By UID, those that are there and are not being deleted."""
        self._uids: dict[str, str] = {}
        self._unreadable: dict[str, str] = {}
        self.flusher = Flusher(self._flush)
        self.wake: Callable[[], None] = lambda: None
        """Asks for a tick."""
        self.listed_at: float | None = None
        """When all was last listed."""
        self.snapshot: Snapshot | None = None
        """The last that was planned by."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = 0.0

    # ---- seeing

    async def observe(self) -> Snapshot:
        """Return all jobs with their workers, the nodes, and others' pods. `BackendError` while not all is known."""
        now = self._clock.now()
        self._require_known(now)
        for uid in self._store.take_changed():
            self._meet(uid, now)
        for uid in self._store.take_heard():
            if uid in self.jobs:
                self.jobs[uid].heard = True
        self._notice_overwriting()
        for tracked in self.jobs.values():
            tracked.look(now)
        self._signals.looked()
        for uid in self._signals.waiting():
            facts = self.jobs[uid].facts if uid in self.jobs else None
            if facts is None or facts.finished:
                self._signals.forget(uid)
            else:
                self._signals.acknowledged(uid, facts.acknowledged_generation, now)
        return assemble(self.jobs.values(), self._store, now, self._rules)

    def _require_known(self, now: float) -> None:
        if unknown := self._store.unknown():
            raise BackendError(f"not all is known yet: {', '.join(unknown)} were not listed")
        age = now - (self.listed_at or 0.0)
        if age > LISTS_KEPT * self._settings.resync_seconds:
            raise BackendError(f"what is known is {age:.0f} s old: the API server gives no lists")

    def _meet(self, uid: str, now: float) -> None:
        """Bring what is tracked up to what the store says of one job."""
        seen, tracked = self._store.job(uid), self.jobs.get(uid)
        if seen is None or seen.deleting:
            self._unreadable.pop(uid, None)
            if tracked is not None:
                del self.jobs[uid]
                if self._uids.get(tracked.key) == uid:
                    del self._uids[tracked.key]
            return
        if tracked is None:
            try:
                tracked = Tracked(seen, self._store, self._settings, now)
            except ValueError as error:
                if self._unreadable.get(uid) != str(error):
                    self._unreadable[uid] = str(error)
                    logger.error("%s: left alone, its status cannot be read: %s", seen.key, error)
                return
            self.jobs[uid] = tracked
            self._uids[seen.key] = uid
        else:
            tracked.meet(seen)
        tracked.stale = tracked.stirred = True

    def _notice_overwriting(self) -> None:
        """Write the status of jobs anew that somebody else has written to."""
        for uid in list(self._store.overwritten):
            tracked, seen = self.jobs.get(uid), self._store.job(uid)
            if self.flusher.is_busy(uid):
                continue  # it may be by our own hand: the answer is on its way
            self._store.overwritten.discard(uid)
            if tracked is not None and seen is not None and seen.status != tracked.answered:
                logger.warning("%s: its status was changed by somebody else, it is written anew", tracked.key)
                tracked.forced = tracked.stirred = True

    def live(self) -> list[LiveJob]:
        """Return the jobs that are there, for metrics."""
        return [tracked.live() for tracked in self.jobs.values()]

    # ---- deciding

    async def apply(self, action: Action) -> None:
        """Remember the decision; all else follows from that."""
        tracked = self.jobs.get(self._uids.get(action.job, ""))
        if tracked is not None:
            now = self._clock.now()
            tracked.act(action, now)
            if isinstance(action, GrantExtra):
                self._signals.granted(tracked.seen.uid, tracked.record.allocation.generation, now)
            logger.info("%s", action)

    def planned(self, snapshot: Snapshot, plan: Plan) -> None:
        """Take notice why jobs get no more, and let be written and done what is to be."""
        self.snapshot = snapshot
        now = self._clock.now()
        for uid, tracked in self.jobs.items():
            refusal = plan.refusals.get(tracked.key)
            tracked.refuse(None if refusal is None else refusal.reason)
            if (tracked.stirred or tracked.lapsed) and not tracked.writing.holds(now):
                self.flusher.add(uid, urgent=tracked.stirred)
        dues = (tracked.due for tracked in self.jobs.values())
        self._set_timer(min((due for due in dues if due is not None), default=None), now)

    # ---- doing

    async def _flush(self, uid: str) -> None:
        tracked = self.jobs.get(uid)
        if tracked is None:
            return
        await self._writer.flush(tracked)
        if tracked.stale or tracked.heard:
            self.wake()
        # The other jobs are not asked: a flush would cost more the more of them there are.
        if tracked.due is not None and (self._timer is None or tracked.due < self._timer_due):
            self._set_timer(tracked.due, self._clock.now())

    def _set_timer(self, due: float | None, now: float) -> None:
        """Wake the loop at `due`, when something is due of itself; one that is awake too early sees so."""
        self._cancel_timer()
        if due is not None:
            seconds = max(0.0, self._clock.wall_seconds(due - now))
            self._timer = asyncio.get_running_loop().call_later(seconds, self._timer_rings)
            self._timer_due = due

    def _timer_rings(self) -> None:
        self._timer = None
        self.wake()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def close(self, seconds: float) -> None:
        """Finish what is being written, for at most so long."""
        self._cancel_timer()
        await self.flusher.close(seconds)
