"""The scheduler's loop: snapshot → plan → apply, for any backend.

One task. Three things wake it: `wake()` (facts have changed; a burst of changes is one tick), the time at which the
last plan becomes outdated without any new fact, and a slow resync in case a wake-up was lost.

A plan of a large cluster takes a while, and most changes do not need one. So a backend may examine a change first
(`notice()`): it carries out the consequences of the facts alone, and returns how soon a plan must be made.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, Protocol

from espalier_operator.clock import Clock
from espalier_operator.model import Snapshot
from espalier_operator.model.actions import Action, Plan
from espalier_operator.planner import plan_safely
from espalier_operator.policies import Policy
from espalier_operator.policies.memory import PolicyMemory
from espalier_operator.policies.remote import Asking

logger = logging.getLogger(__name__)

DEBOUNCE_SECONDS: Final = 0.05
"""Wall time between a wake-up and the tick, so that a burst of facts is planned once."""
REST: Final = 0.5
"""Pause after a tick, in units of its duration. During a long burst of changes a large cluster is planned less often,
and at least a third of the time is left to carry out plans."""
RESYNC_SECONDS: Final = 30.0
RETRY_SECONDS: Final = 1.0
"""Wall time after which a failed tick is retried."""


IGNORED_NAMED: Final = 5
"""Number of infeasible parts of a decision that the log names."""


class BackendError(Exception):
    """The backend could not read or change the cluster now. The loop retries and assumes nothing meanwhile."""


class Backend(Protocol):
    """An environment of nodes, workers and jobs."""

    async def observe(self) -> Snapshot:
        """Return the current snapshot; raises `BackendError` where it is unknown (and never returns an empty one)."""

    async def apply(self, action: Action) -> None:
        """Carry out `action`, idempotently; raises `BackendError` if that fails."""

    def planned(self, snapshot: Snapshot, plan: Plan) -> None:
        """Record a plan whose actions were all tried, for conditions, metrics and displays."""


class LoopObserver(Protocol):
    """Receives the durations of ticks, for metrics."""

    def ticked(self, plan: Plan, thought: float, took: float) -> None:
        """Record a completed tick: the wall seconds of observing and planning, and of the whole tick."""

    def failed(self, what: str) -> None:
        """Record a failure that is retried: `observe` or `apply`."""


class SchedulerLoop:
    """Runs one backend under one policy."""

    def __init__(
        self,
        backend: Backend,
        policy: Policy,
        clock: Clock,
        *,
        debounce_seconds: float = DEBOUNCE_SECONDS,
        resync_seconds: float = RESYNC_SECONDS,
        wall: Callable[[], float] | None = None,
        observer: LoopObserver | None = None,
        memory: PolicyMemory | None = None,
        sync_figures: Callable[[], float] = lambda: 0.0,
        follow_up_seconds: float = 0.0,
        asking: Asking | None = None,
    ) -> None:
        """Prepare; nothing runs before `run`. `wall` is a monotonic clock in wall seconds (for tests).

        `memory` is the policy's memory of an earlier run. `sync_figures` is called after a `notice()`: it returns the
        wall seconds within which a plan must be made, infinity for none. The next plan follows a plan's own actions
        after `follow_up_seconds`: facts that it waits for wake the loop themselves. `asking` queries a policy that
        another process or thread evaluates.
        """
        self._observer, self._sync_figures, self._asking = observer, sync_figures, asking
        self._follow_up = follow_up_seconds
        self._fallback = ""
        self._backend, self._policy, self._clock = backend, policy, clock
        self._debounce, self._resync = debounce_seconds, resync_seconds
        self._wall = wall
        self._event = asyncio.Event()
        self._changed = False
        """Facts have changed since the last tick began."""
        self._last_tick: float | None = None
        self._rests_until = 0.0
        self._ignored: Sequence[str] = ()
        self._memory = memory or PolicyMemory(policy.name)

    def wake(self) -> None:
        """Report that facts have changed, so that a plan is made soon."""
        self._changed = True
        self._event.set()

    def notice(self) -> None:
        """Report a change for which `sync_figures` returns how soon a plan must be made."""
        self._event.set()

    def last_tick_age(self) -> float | None:
        """Return the wall seconds since the last completed tick, None before the first, for the liveness probe."""
        return None if self._last_tick is None else self._monotonic() - self._last_tick

    async def run(self) -> None:
        """Tick until cancelled."""
        while True:
            await self._until_due(await self.tick())

    async def _until_due(self, wait: float) -> None:
        """Sleep until the next tick is due: for `wait` wall seconds, or less if woken."""
        due = self._monotonic() + wait
        while True:
            # Not wait_for: in Python 3.11 it forgets that it was cancelled when the event is set at the same moment.
            try:
                async with asyncio.timeout(due - self._monotonic()):
                    await self._event.wait()
            except TimeoutError:
                return
            self._event.clear()
            within = self._sync_figures()
            if self._changed:
                within, self._changed = 0.0, False
            due = min(due, max(self._monotonic() + max(within, self._debounce), self._rests_until))

    async def tick(self) -> float:
        """Plan and apply once; return the wall seconds until the next tick without a wake-up."""
        self._event.clear()
        self._changed = False
        began = self._monotonic()
        try:
            snapshot = await self._backend.observe()
            if await self._ask(snapshot):  # the cluster may have changed meanwhile
                began = self._monotonic()  # waiting is not work that needs a rest
                snapshot = await self._backend.observe()
        except BackendError as error:
            logger.warning("cannot read the cluster; retrying in %g s: %s", RETRY_SECONDS, error)
            self._failed("observe")
            return RETRY_SECONDS
        snapshot, planned = self._plan(snapshot)
        self._say_ignored(planned.ignored)
        self._say_fallback(planned.fallback)
        thought = self._monotonic() - began
        wait, failed = self._resync, False
        for action in planned.actions:
            try:
                await self._backend.apply(action)
            except BackendError as error:
                logger.warning("%s: %s; retrying in %g s", action, error, RETRY_SECONDS)
                self._failed("apply")
                wait, failed = min(wait, RETRY_SECONDS), True
        self._backend.planned(snapshot, planned)
        self._last_tick = self._monotonic()
        self._rests_until = self._last_tick + REST * thought
        if self._observer is not None:
            self._observer.ticked(planned, thought, self._last_tick - began)
        if planned.actions and not failed:
            wait = min(wait, max(self._follow_up, self._debounce))
        if planned.wake_at is not None:
            wait = min(wait, max(0.0, self._clock.wall_seconds(planned.wake_at - self._clock.now())))
        return wait

    async def _ask(self, snapshot: Snapshot) -> bool:
        """Query a policy that is evaluated elsewhere; return whether it was queried."""
        if self._asking is None:
            return False
        memory = await self._asking.memory_for(replace(snapshot, policy_memory=self._memory.memory))
        if memory is not None:
            self._memory.keep(memory)
        return memory is not None

    def _plan(self, snapshot: Snapshot) -> tuple[Snapshot, Plan]:
        """Return the snapshot with the policy's memory, and the plan."""
        seen = replace(snapshot, policy_memory=self._memory.memory)
        made = plan_safely(seen, self._policy, seen.taken_at, resumed=self._memory.is_resumed)
        if made.unusable is not None:
            logger.warning(
                "policy %s starts with an empty memory: it cannot use its stored memory",
                self._policy.name,
                exc_info=made.unusable,
            )
        if made.raised is None:
            self._memory.keep(made.plan.policy_memory)
        elif made.plan.fallback != self._fallback:
            logger.error("policy %s cannot decide", self._policy.name, exc_info=made.raised)
        return made.snapshot, made.plan

    def _say_ignored(self, ignored: Sequence[str]) -> None:
        """Log the infeasible parts of the policy's decision when they change."""
        if ignored and ignored != self._ignored:
            some = "; ".join(ignored[:IGNORED_NAMED])
            more = f"; and {len(ignored) - IGNORED_NAMED} more" if len(ignored) > IGNORED_NAMED else ""
            logger.warning("policy %s: ignored infeasible parts of its decision: %s%s", self._policy.name, some, more)
        self._ignored = ignored

    def _say_fallback(self, why: str) -> None:
        """Log when another policy begins or ceases to decide in its place."""
        if why and why != self._fallback:
            logger.warning("policy %s: fair decides in its place: %s", self._policy.name, why)
        elif self._fallback and not why:
            logger.info("policy %s decides again", self._policy.name)
        self._fallback = why

    def _failed(self, what: str) -> None:
        if self._observer is not None:
            self._observer.failed(what)

    def _monotonic(self) -> float:
        return asyncio.get_running_loop().time() if self._wall is None else self._wall()
