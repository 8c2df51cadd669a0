"""The answers of a shadow policy: it is asked after the answer is sent, in a separate thread."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import torch

from espalier_agent.history.backlog import Backlog
from espalier_agent.history.records import ShadowRecord
from espalier_agent.policies.advice import Decision, decide
from espalier_agent.service.watch import PolicyWatch
from espalier_core.types.advice import AdviceRequest

logger = logging.getLogger(__name__)

MAX_WAITING: Final = 500
MAX_WAITING_BYTES: Final = 8 * 1024 * 1024
"""Maximum bytes of the requests that wait."""


@dataclass(frozen=True, slots=True)
class _Question:
    decision_id: str
    request: AdviceRequest
    decision: Decision
    weight: int


class Shadow:
    """Asks a policy that does not decide; passes its answer to `answered`."""

    def __init__(
        self, policy: PolicyWatch, answered: Callable[[ShadowRecord, int], None], lost: Callable[[], None]
    ) -> None:
        """`answered` receives the answer and its size, in the shadow's thread; `lost` a question that was not asked."""
        self.policy = policy
        self._answered = answered
        self._lost = lost
        self._backlog: Backlog[_Question] = Backlog(MAX_WAITING, MAX_WAITING_BYTES)
        self._thread = threading.Thread(target=self._answer, name="shadow", daemon=True)

    def start(self) -> None:
        """Start answering and watching the policy's folder."""
        self.policy.start()
        self._thread.start()

    def close(self, seconds: float) -> None:
        """Answer what waits, for at most this many seconds."""
        end = time.monotonic() + seconds
        self._backlog.close()
        self._thread.join(seconds)
        self.policy.close(max(end - time.monotonic(), 0.0))

    def ask(self, decision_id: str, request: AdviceRequest, decision: Decision, weight: int) -> None:
        """Enqueue a request that was decided; never waits, and drops it if the queue is full."""
        if not self._backlog.put(_Question(decision_id, request, decision, weight), weight):
            self._lost()

    def _answer(self) -> None:
        # torch's number of threads is set for each thread.
        torch.set_num_threads(1)
        while questions := self._backlog.take(1):
            for question in questions:
                self._answer_one(question)

    def _answer_one(self, question: _Question) -> None:
        policy = self.policy.current
        try:
            decision = decide(policy, question.request)
        except Exception:  # A policy on trial may fail in any way; those after it are asked all the same.
            logger.exception("shadow %s@%s fails at decision %s", policy.name, policy.version, question.decision_id)
            self._lost()
            return
        # With what the other policy prefers: what it takes may be drawn.
        agreed = decision.action == question.decision.preferred
        logger.info(
            "shadow of decision %s: %s@%s %s action=%s",
            question.decision_id,
            policy.name,
            policy.version,
            "agrees" if agreed else "disagrees",
            decision.action,
        )
        record = ShadowRecord(question.decision_id, datetime.now(UTC), decision, policy.identity, agreed)
        self._answered(record, question.weight // 8)
