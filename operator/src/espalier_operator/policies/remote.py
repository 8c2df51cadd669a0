"""Asks a policy that another process or thread evaluates, before a plan is made: with a deadline.

A plan is never made from a view that is older than the answer: the loop looks at the world again after it. Whatever
goes wrong is put into words, and `fair` decides.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Any, Protocol

from espalier_operator.model import Snapshot
from espalier_operator.policies import Policy
from espalier_operator.policies.learned import Answer, LearnedPolicy, PolicyFileError, answered, unanswered
from espalier_operator.policies.snapshot_view import view_of
from espalier_operator.policies.view import View


class Outcome(StrEnum):
    """What became of a question."""

    ANSWERED = "answered"
    LATE = "late"
    AWAY = "away"
    REFUSED = "refused"
    """The file cannot be used, or cannot serve this cluster."""
    FAILED = "failed"
    """By an error that nobody expected."""


class AwayError(Exception):
    """Nobody answers; the message says why."""


class Observer(Protocol):
    """Receives what became of questions, for metrics."""

    def asked(self, outcome: Outcome, seconds: float) -> None:
        """Record a question and the wall seconds that the plan waited for it."""


Ask = Callable[[View], Awaitable[Answer]]
"""Raises `AwayError` and `PolicyFileError`."""


class Asking:
    """Has answers put into what a policy remembers."""

    def __init__(self, policy: LearnedPolicy, ask: Ask, observer: Observer | None = None) -> None:
        """`ask` is given the time that the policy waits; what it does then is cancelled."""
        self._policy, self._ask, self._observer = policy, ask, observer

    async def memory_for(self, snapshot: Snapshot) -> Mapping[str, Any] | None:
        """Return what the policy is to remember before it decides about `snapshot`; None: what it does.

        The snapshot holds what it remembers now. Ends within the time that the policy waits.
        """
        view = view_of(snapshot, [job for job in snapshot.jobs if not job.finished], snapshot.taken_at)
        if not self._policy.is_due(view):
            return None
        began = time.monotonic()
        outcome, memory = await self._asked(view)
        if self._observer is not None:
            self._observer.asked(outcome, time.monotonic() - began)
        return memory

    async def _asked(self, view: View) -> tuple[Outcome, dict[str, Any]]:
        wait = self._policy.wait
        try:
            async with asyncio.timeout(wait):
                answer = await self._ask(view)
            return Outcome.ANSWERED, answered(view, answer, self._policy.hold)
        except TimeoutError:
            return Outcome.LATE, unanswered(view, f"its policy file did not answer within {wait:g} s")
        except AwayError as error:
            return Outcome.AWAY, unanswered(view, f"its policy server is away: {error}")
        except PolicyFileError as error:
            return Outcome.REFUSED, unanswered(view, f"its policy file cannot decide: {error}")
        except Exception as error:  # Evaluating a file must never end the scheduler.
            return Outcome.FAILED, unanswered(view, f"its policy file failed: {type(error).__name__}: {error}")


def asked_here(policy: Policy, observer: Observer | None = None) -> tuple[Policy, Asking | None]:
    """Return a policy whose file is evaluated in a thread of this process, and how it is asked.

    Any other policy is returned as it is.
    """
    if not isinstance(policy, LearnedPolicy) or (file := policy.evaluates) is None:
        return policy, None

    async def ask(view: View) -> Answer:
        return await asyncio.to_thread(file.answer, view)

    return replace(policy, file=""), Asking(policy, ask, observer)
