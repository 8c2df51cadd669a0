"""The operator's process: waits for its Lease, acts, serves its health, and ends on a signal."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import time
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager, AsyncExitStack
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Final

from kubernetes.aio.client.api_client import ApiClient

from espalier_core.k8s.client import NoAccessError
from espalier_core.k8s.scraping import NOBODY_ASKED, CertificateError, scrapers_of, serve_metrics
from espalier_core.metrics import CONTENT_TYPE
from espalier_operator.kube.audit import AuditLog
from espalier_operator.kube.client import AccessError, KubeClient, api_access
from espalier_operator.kube.metrics.exporter import OperatorMetrics
from espalier_operator.kube.metrics.measurements import TracesError, exporter_to
from espalier_operator.kube.objects.names import POLICY_MEMORY, RECENT_USE, lease_name
from espalier_operator.kube.process.health import Address, Heartbeats, serve_health, serve_posts
from espalier_operator.kube.process.lease import Lease, LeaseLostError
from espalier_operator.kube.process.operator import Operator
from espalier_operator.kube.progress import Posts
from espalier_operator.kube.settings import KubeSettings
from espalier_operator.model import Snapshot

logger = logging.getLogger(__name__)

SCRAPE_SECONDS: Final = 30.0
"""Maximum seconds of a scrape over TLS; Prometheus waits ten seconds by default."""
_NEVER: Final = 2**31 - 1


class Exit(IntEnum):
    """Exit codes of the command; 2 is click's, for invalid options."""

    ASKED = 0
    ERROR = 1
    LEASE_LOST = 3
    NO_ACCESS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """Arguments of the command in addition to the settings."""

    kubeconfig: Path | None
    lease: bool
    lease_seconds: int
    namespace: str
    """Namespace and name of the Lease."""
    http: Address | None
    snapshot_http: Address | None
    audit_dir: Path | None = None
    audit_mib: int = 1024
    metrics_tls_dir: Path | None = None
    """Folder of the certificate; None: metrics are served on `http`, not over TLS."""
    metrics_https: Address | None = None
    metrics_authentication: str = NOBODY_ASKED


class AddressError(Exception):
    """The operator cannot listen on an address."""


class AuditError(Exception):
    """The audit log cannot be written."""


async def run_operator(settings: KubeSettings, invocation: Invocation) -> Exit:
    """Run until asked to end by SIGTERM or SIGINT, and return the exit code."""
    service = _Service(settings, invocation)
    service.catch_signals()
    try:
        await service.run()
    except (AccessError, AddressError, AuditError, NoAccessError, TracesError) as error:
        logger.error("%s", error)
        return Exit.NO_ACCESS
    except LeaseLostError as error:
        logger.error("%s", error)
        return Exit.LEASE_LOST
    except Exception:
        logger.exception("the operator failed with an unexpected error")
        return Exit.ERROR
    logger.info("stopped by a signal")
    return Exit.ASKED


class _Service:
    """One run of the process."""

    def __init__(self, settings: KubeSettings, invocation: Invocation) -> None:
        self._settings, self._invocation = settings, invocation
        self._stop = asyncio.Event()
        self._since = time.monotonic()
        """Time at which it started to wait, or to act."""
        self._metrics = OperatorMetrics()
        self._lease: Lease | None = None
        self._operator: Operator | None = None
        self._audit: AuditLog | None = None
        self._searching: list[asyncio.Task[None]] = []

    def catch_signals(self) -> None:
        """Stop on a signal. kopf sets its own handlers when it starts, so this is repeated after that."""
        for each in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(each, self._stop.set)

    async def run(self) -> None:
        """Wait for the Lease, then act."""
        given = self._invocation
        if given.audit_dir is not None:
            try:
                self._audit = AuditLog(given.audit_dir, given.audit_mib << 20)
            except OSError as error:
                raise AuditError(f"--audit-dir: {given.audit_dir} cannot be written: {error.strerror}") from error
        async with AsyncExitStack() as stack:
            if self._settings.traces_endpoint is not None:
                self._metrics.signals.trace, end = exporter_to(self._settings.traces_endpoint)
                stack.push_async_callback(asyncio.to_thread, end)
            api = await stack.enter_async_context(api_access(given.kubeconfig))
            metrics = self._scrape if given.metrics_tls_dir is None else None
            pulse = Heartbeats(age=self._age, waits_for=self._waits_for, snapshot=self._snapshot, metrics=metrics)
            try:
                await stack.enter_async_context(serve_health(pulse, given.http, given.snapshot_http))
                if self._settings.progress_url is not None:
                    await stack.enter_async_context(serve_posts(self._settings.progress_url, self._posts))
                if given.metrics_tls_dir is not None and given.metrics_https is not None:
                    stack.enter_context(self._serve_metrics(given.metrics_tls_dir, given.metrics_https))
            except CertificateError as error:
                raise AddressError(str(error)) from error
            except OSError as error:
                options = "--http, --snapshot-http, --metrics-https or --progress-url"
                raise AddressError(f"{error}; give another address to {options}") from error
            stopping = asyncio.create_task(self._stop.wait())
            stack.callback(stopping.cancel)
            if not given.lease:
                await self._act(api, stopping, None)
                return
            name = lease_name(self._settings.controller_name)
            self._lease = Lease(api, given.namespace, name, identity(), given.lease_seconds)
            acquiring = asyncio.create_task(self._lease.acquire())
            await asyncio.wait([acquiring, stopping], return_when=asyncio.FIRST_COMPLETED)
            if not acquiring.done():
                acquiring.cancel()
                await asyncio.gather(acquiring, return_exceptions=True)
                return
            acquiring.result()
            holding = await stack.enter_async_context(self._lease.hold())
            await self._act(api, stopping, holding)

    async def _act(self, api: ApiClient, stopping: asyncio.Task[bool], holding: asyncio.Task[None] | None) -> None:
        """Schedule until asked to end, or until the Lease is lost."""
        self._since = time.monotonic()
        self._operator = Operator(
            KubeClient(
                api,
                requested=self._metrics.requested,
                may_write=lambda: self._lease is None or self._lease.is_held,
            ),
            api.configuration,
            self._settings,
            kopf_started=self.catch_signals,
            all_known=self._begin_garbage_search,
            metrics=self._metrics,
            recent_use=None if self._lease is None else self._lease.note(RECENT_USE),
            policy_memory=None if self._lease is None else self._lease.note(POLICY_MEMORY),
            audit=self._audit,
        )
        if self._lease is not None:
            kept = {RECENT_USE: self._operator.recent_use_note, POLICY_MEMORY: self._operator.policy_memory.to_text}
            self._lease.keep_notes(kept)
        acting = asyncio.create_task(self._operator.run(), name="operator")
        lost: list[asyncio.Task[None]] = [] if holding is None else [holding]
        try:
            await asyncio.wait([acting, stopping, *lost], return_when=asyncio.FIRST_COMPLETED)
            self._operator.stop()
            if not any(task.done() for task in lost):
                await asyncio.wait([acting, *lost], return_when=asyncio.FIRST_COMPLETED)
            if any(task.done() for task in lost):
                raise LeaseLostError("the lease could not be renewed in time: this operator stops")
            acting.result()
        finally:
            tasks = [acting, *self._searching]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _begin_garbage_search(self) -> None:
        if self._operator is not None:
            search = GarbageSearch(self._operator.backend.queue.is_idle)
            self._searching.append(asyncio.create_task(search.run(), name="garbage"))

    # ---- for /healthz, /metrics and /snapshot

    def _serve_metrics(self, folder: Path, address: Address) -> AbstractContextManager[int]:
        given, loop = self._invocation, asyncio.get_running_loop()

        def scrape() -> tuple[str, bytes]:
            return CONTENT_TYPE, asyncio.run_coroutine_threadsafe(self._scrape(), loop).result(SCRAPE_SECONDS)

        asked = given.metrics_authentication != NOBODY_ASKED
        scrapers = scrapers_of("espalier-operator", given.kubeconfig) if asked else None
        return serve_metrics(address.host, address.port, folder, scrape, scrapers)

    async def _scrape(self) -> bytes:
        operator = self._operator
        if operator is not None:
            store = operator.store
            self._metrics.look(
                operator.backend.live(),
                operator.snapshot,
                store.received_at,
                store.misattributed(),
                store.reports.unread(),
                operator.backend.shares,
            )
        # Making the text for a thousand jobs takes longer than a tick.
        return await asyncio.to_thread(self._metrics.text, leads=operator is not None)

    def _age(self) -> float | None:
        if self._operator is not None:
            ticked = self._operator.loop.last_tick_age()
            return time.monotonic() - self._since if ticked is None else ticked
        tried = None if self._lease is None else self._lease.tried_at
        return None if tried is None else time.monotonic() - tried

    def _waits_for(self) -> str | None:
        if self._operator is not None or self._lease is None:
            return None
        return self._lease.holder or ""

    def _posts(self) -> Posts | None:
        return None if self._operator is None else self._operator.posts

    def _snapshot(self) -> Snapshot | None:
        return None if self._operator is None else self._operator.snapshot


def identity() -> str:
    """Return this process's identity in the election: its pod, and a unique suffix."""
    return f"{os.environ.get('POD_NAME') or socket.gethostname()}_{uuid.uuid4()}"


class GarbageSearch:
    """Collects garbage in the whole heap instead of Python, which still collects young objects.

    A collection stops the event loop. With 1,000 jobs a full one takes a third of a second of CPU time, and Python
    begins it at any moment. Survivors of a collection are frozen and skipped by the next ones, so these are short.
    """

    def __init__(
        self,
        is_idle: Callable[[], bool],
        *,
        every: float = 60.0,
        patience: float = 240.0,
        everything_every: float = 3600.0,
        look: float = 0.05,
    ) -> None:
        """Collect each `every` seconds, once `is_idle` is true (checked each `look` seconds) or after `patience` more.

        Survivors of the last collection are left out, except once in `everything_every` seconds.
        """
        self._is_idle, self._every, self._patience = is_idle, every, patience
        self._everything_every, self._look = everything_every, look

    async def run(self) -> None:
        """Collect until cancelled; then Python collects as before."""
        loop, thresholds = asyncio.get_running_loop(), gc.get_threshold()
        young, middle, _ = thresholds
        try:
            gc.set_threshold(young, middle, _NEVER)
            _search()
            everything_at = loop.time() + self._everything_every
            while True:
                await asyncio.sleep(self._every)
                until = loop.time() + self._patience
                while not self._is_idle() and loop.time() < until:  # noqa: ASYNC110 - nothing tells of it
                    await asyncio.sleep(self._look)
                if loop.time() >= everything_at:
                    gc.unfreeze()
                    everything_at = loop.time() + self._everything_every
                _search()
        finally:
            gc.unfreeze()
            gc.set_threshold(*thresholds)


def _search() -> None:
    gc.collect()
    gc.freeze()
