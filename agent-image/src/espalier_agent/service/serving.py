"""The state of a running service: the policy in service, its shadow, the store, and their metrics."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from pydantic import Field

from espalier_agent.history.records import DecisionRecord, ShadowRecord
from espalier_agent.history.store import MAX_DATABASE_BYTES, OutcomeStore
from espalier_agent.policies.advice import Decision
from espalier_agent.policies.exploration import Exploration
from espalier_agent.policies.files import load_policy
from espalier_agent.policies.policy import Policy
from espalier_agent.service.proof import Authentication
from espalier_agent.service.shadow import Shadow
from espalier_agent.service.watch import LOOK_SECONDS, PolicyWatch
from espalier_core.base import Record
from espalier_core.metrics.exporting import Metrics
from espalier_core.types.advice import AdviceRequest, PolicyVersion

MAX_BODY_BYTES: Final = 4 * 1024 * 1024
"""A described network of 500 layers is about 200 KB."""
END_SECONDS: Final = 0.8
"""How long the threads may take to end, all together: a stopped service is gone within two seconds, one of
which requests in flight may have."""


class Settings(Record):
    """What can be set about the service."""

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
    """Who may ask for advice and report outcomes."""
    advice_needs_token: bool = False
    """Whether advice without a token is refused, where tokens are reviewed."""
    metrics_tls_dir: Path | None = None
    """Folder with tls.crt and tls.key; absent: metrics are served with everything else, not over TLS."""
    metrics_port: int = 8443
    metrics_authentication: Authentication = Authentication.NONE
    """Who may scrape over TLS."""
    max_body_bytes: int = MAX_BODY_BYTES
    policy_look_seconds: float = Field(default=LOOK_SECONDS, gt=0)
    """Interval of checking the policies' folders."""


class Serving:
    """The running parts of the service. Advice waits for none of them."""

    def __init__(self, settings: Settings, policy: Policy, metrics: Metrics) -> None:
        """Read the shadow and look at the store's file: raises `PolicyError` and `StoreError`."""
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
            # Whatever it still has to answer, stored answers are written.
            self.shadow.close(left() / 2)
        if self.store is not None:
            self.store.close(left())
        self.policy.close(left())

    def decided(
        self, decision_id: str, request: AdviceRequest, decision: Decision, policy: PolicyVersion, weight: int
    ) -> None:
        """Take note of an answer: hands it on to store and shadow, and waits for neither.

        `weight` is the size of the request as it came.
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
