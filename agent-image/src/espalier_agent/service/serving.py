"""The state of a running service: the policy in service, its shadow, the store, and their metrics.

A thread checks the policy's folder every second, and reloads the policy while the service runs. It compares the
identity of the files, links followed: it notices a folder that is written again, a renamed file and a volume of
Kubernetes whose link is switched. A new policy is read, checked and tested with one request before it replaces the old
one, by one assignment; an unusable one is refused, and the old one continues.

A shadow policy is asked after the answer is sent, in a separate thread.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import torch
from pydantic import Field

from espalier_agent.data import named_architecture
from espalier_agent.history.schema import DecisionRecord, ShadowRecord
from espalier_agent.history.store import MAX_DATABASE_BYTES, Backlog, OutcomeStore
from espalier_agent.policies.advice import Exploration, PolicyDecision, decide
from espalier_agent.policies.policy import POLICY_FILE, Policy, PolicyError, load_policy
from espalier_agent.service.proof import Authentication
from espalier_core.base import Record
from espalier_core.files.reloading import ReloadedFiles
from espalier_core.metrics import Metrics
from espalier_core.types.advice import AdviceRequest, PolicyVersion

logger = logging.getLogger(__name__)


LOOK_SECONDS: Final = 1.0
AGAIN_SECONDS: Final = 60.0
"""Seconds after which a refused policy is tried again, even if unchanged: its disk may have been unavailable."""

MAX_WAITING: Final = 500
MAX_WAITING_BYTES: Final = 8 * 1024 * 1024
"""Maximum size of the waiting requests, in bytes."""
MAX_BODY_BYTES: Final = 4 * 1024 * 1024
"""Maximum size of a request, in bytes; a described network of 500 layers has about 200 KB."""
END_SECONDS: Final = 0.8
"""Seconds that all threads together may take to end: a stopped service is gone within two seconds, one of which
requests in flight may take."""


class PolicyWatch:
    """Holds the latest usable policy of a folder. Without a folder it keeps the first one."""

    def __init__(
        self,
        policy: Policy,
        folder: Path | None,
        *,
        look_seconds: float = LOOK_SECONDS,
        switched: Callable[[Policy, Policy], None] = lambda old, new: None,
        refused: Callable[[PolicyError], None] = lambda error: None,
    ) -> None:
        """`policy` may have been read from the folder some time ago: the first look reads it again.

        `switched` receives the old and the new policy, `refused` the reason for a refusal; both in the watch's thread.
        """
        self.current = policy
        """The policy in service; read it once per request."""
        self.folder = folder
        self._look_seconds = look_seconds
        self._switched = switched
        self._refused = refused
        self._files: ReloadedFiles[Policy, PolicyError] | None = None
        if folder is not None:
            self._files = ReloadedFiles(
                lambda: _files(folder),
                lambda: _sound(folder),
                PolicyError,
                again_seconds=AGAIN_SECONDS,
                refused=self._refuse,
            )
        self._failing = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="policy-watch", daemon=True)

    def start(self) -> None:
        """Start checking."""
        if self.folder is not None:
            self._thread.start()

    def close(self, seconds: float) -> None:
        """Stop; wait at most this many seconds for a running check."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(seconds)

    def look(self) -> None:
        """Use the folder's policy if it has changed and is usable."""
        if self._files is None:
            return
        policy, old = self._files.look(), self.current
        if policy is not None and (policy.identity, policy.lineage) != (old.identity, old.lineage):
            self.current = policy
            logger.info("policy %s@%s replaces %s@%s", policy.name, policy.version, old.name, old.version)
            self._switched(old, policy)

    def _refuse(self, error: PolicyError) -> None:
        logger.error("refused a policy; %s@%s stays in service: %s", self.current.name, self.current.version, error)
        self._refused(error)

    def _watch(self) -> None:
        # torch's number of threads is set per thread.
        torch.set_num_threads(1)
        self._look_safely()
        while not self._stop.wait(self._look_seconds):
            self._look_safely()

    def _look_safely(self) -> None:
        """Check the folder; a disk error is logged once until a check succeeds, and does not end the thread."""
        try:
            self.look()
        except OSError as error:
            if not self._failing:
                logger.error("cannot check %s (%s); retrying", self.folder, error)
            self._failing = True
        else:
            self._failing = False


def _files(folder: Path) -> list[Path]:
    """Return the files of a policy."""
    try:
        weights = sorted(folder.glob("*.safetensors"))
    except OSError:  # Unavailable or unreadable: only some versions of Python raise it.
        weights = []
    return [folder / POLICY_FILE, *weights]


def _sound(folder: Path) -> Policy:
    """Read a policy and test it with a known request; raise `PolicyError` on any failure."""
    request = AdviceRequest(
        job="trial", architecture=named_architecture("cnn1"), time_left_seconds=50.0, time_budget_seconds=100.0
    )
    try:
        policy = load_policy(folder)
        decide(policy, request)
    except PolicyError:
        raise
    except Exception as error:  # Any error: it must not end the thread, and would have failed a job's request.
        raise PolicyError(f"{folder}: the policy fails at a test request ({type(error).__name__}: {error})") from error
    return policy


@dataclass(frozen=True, slots=True)
class _Question:
    decision_id: str
    request: AdviceRequest
    decision: PolicyDecision
    weight: int


class Shadow:
    """Asks a policy that does not decide; passes its answers to `answered`."""

    def __init__(
        self, policy: PolicyWatch, answered: Callable[[ShadowRecord, int], None], lost: Callable[[], None]
    ) -> None:
        """`answered` receives the answer and its size, in the shadow's thread; `lost` is called for a dropped
        question.
        """
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
        """Answer the waiting questions, for at most this many seconds."""
        end = time.monotonic() + seconds
        self._backlog.close()
        self._thread.join(seconds)
        self.policy.close(max(end - time.monotonic(), 0.0))

    def ask(self, decision_id: str, request: AdviceRequest, decision: PolicyDecision, weight: int) -> None:
        """Enqueue a decided request; never wait, and drop it if the queue is full."""
        if not self._backlog.put(_Question(decision_id, request, decision, weight), weight):
            self._lost()

    def _answer(self) -> None:
        # torch's number of threads is set per thread.
        torch.set_num_threads(1)
        while questions := self._backlog.take(1):
            for question in questions:
                self._answer_one(question)

    def _answer_one(self, question: _Question) -> None:
        policy = self.policy.current
        try:
            decision = decide(policy, question.request)
        except Exception:  # A shadow may fail in any way; later questions are still asked.
            logger.exception("shadow %s@%s fails at decision %s", policy.name, policy.version, question.decision_id)
            self._lost()
            return
        # Compare with the other policy's preference: its action may have been drawn.
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


class ServiceSettings(Record):
    """Settings of the service."""

    policy_path: Path | None = None
    """Folder of the policy; absent: the shipped one. A new policy in the folder takes effect at once."""
    shadow_path: Path | None = None
    """Folder of a policy that is also asked but does not decide; absent: none."""
    outcomes_path: Path | None = None
    """SQLite file that stores decisions and outcomes; absent: they are not stored."""
    outcomes_max_bytes: int = Field(default=MAX_DATABASE_BYTES, gt=0)
    """Maximum size of the file; when it is reached, nothing more is stored."""
    exploration: Exploration = Exploration()
    """Share of decisions that explore."""
    authentication: Authentication = Authentication.NONE
    """The authentication of requests for advice and of reports."""
    advice_needs_token: bool = False
    """Whether advice without a token is refused if tokens are reviewed."""
    metrics_tls_dir: Path | None = None
    """Folder with tls.crt and tls.key; absent: metrics are served with everything else, not over TLS."""
    metrics_port: int = 8443
    metrics_authentication: Authentication = Authentication.NONE
    """The authentication of scrapers over TLS."""
    max_body_bytes: int = MAX_BODY_BYTES
    policy_look_seconds: float = Field(default=LOOK_SECONDS, gt=0)
    """Interval of checking the policies' folders."""


class Serving:
    """The running parts of the service. Advice waits for none of them."""

    def __init__(self, settings: ServiceSettings, policy: Policy, metrics: Metrics) -> None:
        """Read the shadow and check the store's file: raise `PolicyError` and `StoreError`."""
        self._metrics = metrics
        self.exploration = settings.exploration
        self.policy = PolicyWatch(
            policy,
            settings.policy_path,
            look_seconds=settings.policy_look_seconds,
            switched=self._switched,
            refused=lambda error: metrics.count("espalier_agent_policy_refusals_total"),
        )
        self._show(policy)
        self.store: OutcomeStore | None = None
        if settings.outcomes_path is not None:
            self.store = OutcomeStore(
                settings.outcomes_path,
                max_bytes=settings.outcomes_max_bytes,
                stored=lambda kind, amount: metrics.count("espalier_agent_records_total", kind, amount=amount),
                lost=self._lose,
            )
        self.shadow: Shadow | None = None
        if settings.shadow_path is not None:
            watch = PolicyWatch(
                load_policy(settings.shadow_path),
                settings.shadow_path,
                look_seconds=settings.policy_look_seconds,
                refused=lambda error: metrics.count("espalier_agent_policy_refusals_total"),
            )
            self.shadow = Shadow(watch, self._shadowed, lambda: self._lose("NotAsked", 1))

    def start(self) -> None:
        """Start the threads."""
        if self.store is not None:
            self.store.start()
        if self.shadow is not None:
            self.shadow.start()
        self.policy.start()

    def close(self) -> None:
        """End them within `END_SECONDS`, producers before consumers."""
        end = time.monotonic() + END_SECONDS

        def left() -> float:
            return max(end - time.monotonic(), 0.0)

        if self.shadow is not None:
            # Store answers even if the shadow is not finished.
            self.shadow.close(left() / 2)
        if self.store is not None:
            self.store.close(left())
        self.policy.close(left())

    def decided(
        self, decision_id: str, request: AdviceRequest, decision: PolicyDecision, policy: PolicyVersion, weight: int
    ) -> None:
        """Pass a decision on to store and shadow, without waiting for them.

        `weight` is the size of the request in bytes.
        """
        if self.store is not None:
            self.store.keep(DecisionRecord(decision_id, datetime.now(UTC), request, decision, policy), weight)
        if self.shadow is not None:
            self.shadow.ask(decision_id, request, decision, weight)

    def _shadowed(self, record: ShadowRecord, weight: int) -> None:
        self._metrics.count("espalier_agent_shadow_total", "yes" if record.agreed else "no")
        if self.store is not None:
            self.store.keep(record, weight)

    def _lose(self, error: str, amount: int) -> None:
        self._metrics.count("espalier_agent_records_lost_total", error, amount=amount)

    def _switched(self, old: Policy, new: Policy) -> None:
        self._metrics.count("espalier_agent_policy_switches_total")
        if old.identity != new.identity:
            self._metrics.forget("espalier_agent_policy_info", old.name, old.version)
        self._show(new)

    def _show(self, policy: Policy) -> None:
        self._metrics.set("espalier_agent_policy_info", 1, policy.name, policy.version)
