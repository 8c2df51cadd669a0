"""Assembly of the operator: one API server, one store, one loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from kubernetes.aio.client.configuration import Configuration

from espalier_operator.clock import WallClock
from espalier_operator.kube.apply.queue_statuses import QueueStatuses
from espalier_operator.kube.apply.writer import JobWriter
from espalier_operator.kube.audit import AuditLog
from espalier_operator.kube.backend import KubeBackend
from espalier_operator.kube.client import KubeClient
from espalier_operator.kube.metrics.exporter import OperatorMetrics
from espalier_operator.kube.policy_server import asked
from espalier_operator.kube.progress import Posts, ProgressReader
from espalier_operator.kube.settings import KubeSettings
from espalier_operator.kube.start_events import StartEvents
from espalier_operator.kube.state.due import LATER
from espalier_operator.kube.watch.informer import Informer
from espalier_operator.kube.watch.store import Store
from espalier_operator.loop import SchedulerLoop
from espalier_operator.model import Rules, Snapshot
from espalier_operator.policies import Policy
from espalier_operator.policies.memory import PolicyMemory, RecentUse
from espalier_operator.policies.settings import configured

FLUSH_SECONDS = 5.0
"""Seconds for which an operator may still write after it was stopped."""


class Operator:
    """One acting operator. `run` ends by an error or when it is cancelled; `stop` lets it finish its writes."""

    def __init__(
        self,
        client: KubeClient,
        configuration: Configuration,
        settings: KubeSettings,
        *,
        policy: Policy | None = None,
        rules: Rules | None = None,
        kopf_started: Callable[[], None] = lambda: None,
        all_known: Callable[[], None] = lambda: None,
        metrics: OperatorMetrics | None = None,
        recent_use: str | None = None,
        policy_memory: str | None = None,
        audit: AuditLog | None = None,
    ) -> None:
        """Take the parts; nothing is read or written before `run`. `client` and kopf use the same `configuration`.

        `all_known` is called once, after the first complete list. `recent_use` is the text of the last operator's
        counts, `policy_memory` the text of its policy's memory.
        """
        clock = WallClock()
        rules = rules or settings.rules
        self.recent_use = RecentUse(rules.fair_share_half_life_seconds, recent_use)
        self.policy_memory = PolicyMemory(rules.policy, policy_memory)
        metrics = metrics or OperatorMetrics(clock.now)
        metrics.decides_by(rules.policy)
        self._metrics, self._clock = metrics, clock
        doubt = asyncio.Event()
        self.store = Store(settings, clock.now, changed=self._store_changed, doubted=doubt.set)
        writer = JobWriter(client, self.store, settings, clock, metrics)
        self._queue_statuses = QueueStatuses(client, self.store, clock)
        self.backend = KubeBackend(
            self.store,
            writer,
            settings,
            clock,
            rules,
            metrics.signals,
            self._notice,
            self.recent_use,
            audit,
            self._queue_statuses,
        )
        self._audit = audit
        self._progress = ProgressReader(client, clock, self.backend.sources, self.backend.take_reading)
        self.posts = Posts(client, clock, self.backend.poster, self.backend.take_post)
        self.start_events = StartEvents(client, clock, self.backend.waiting_pods, self.backend.take_start_trouble)
        chosen, asking = asked(policy or configured(rules.policy), metrics)
        self.loop = SchedulerLoop(
            self.backend,
            chosen,
            clock,
            observer=metrics,
            memory=self.policy_memory,
            sync_figures=self.backend.sync_figures,
            follow_up_seconds=LATER,
            asking=asking,
        )
        self._informer = Informer(client, configuration, self.store, settings, clock, self._listed, doubt, kopf_started)
        self._all_known = all_known
        self._stop, self._known = asyncio.Event(), asyncio.Event()

    @property
    def snapshot(self) -> Snapshot | None:
        """The snapshot of the last plan; None before the first."""
        return self.backend.snapshot

    def recent_use_note(self) -> str:
        """Return the recent use counted up to now, for the next operator."""
        return self.recent_use.to_json(self._clock.now())

    def stop(self) -> None:
        """Make `run` finish pending writes, for at most `FLUSH_SECONDS`, and return."""
        self._stop.set()

    async def run(self) -> None:
        """Act until stopped or cancelled."""
        stopped = asyncio.create_task(self._stop.wait())
        watching = asyncio.create_task(self._informer.run(), name="watch")
        planning = asyncio.create_task(self._plan(), name="plan")
        beside = [
            asyncio.create_task(self._progress.run(), name="progress"),
            asyncio.create_task(self._queue_statuses.run(), name="queues"),
            asyncio.create_task(self.start_events.run(), name="starts"),
        ]
        if self._audit is not None:
            beside.append(asyncio.create_task(self._audit.run(), name="audit"))
        tasks = (stopped, watching, planning, *beside)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for failed in (watching, planning, *beside):
                if failed.done():
                    failed.result()
            planning.cancel()
            await self.backend.close(FLUSH_SECONDS)
            if self._audit is not None:
                with suppress(TimeoutError):
                    async with asyncio.timeout(FLUSH_SECONDS):
                        await self._audit.written()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.backend.close(0.0)

    async def _plan(self) -> None:
        await self._known.wait()
        await self.loop.run()

    def _notice(self) -> None:
        self.loop.notice()

    def _store_changed(self) -> None:
        self._metrics.signals.noticed(self._clock.now())
        self.loop.notice()

    def _listed(self) -> None:
        if not self._known.is_set():
            self._known.set()
            self._all_known()
        self.loop.wake()
