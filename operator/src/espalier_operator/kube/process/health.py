"""The operator's HTTP servers: health, metrics, posts of programs, and the last snapshot.

The snapshot names other people's jobs. So it is served only on the loopback, and reached by `kubectl port-forward`,
which needs a separate right at the API server.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from aiohttp import web

from espalier_core.metrics import CONTENT_TYPE
from espalier_operator.kube.objects.worker_pod import STATUS_ROUTE
from espalier_operator.kube.progress import Posts
from espalier_operator.model import Snapshot
from espalier_operator.programs import MAX_POST_BYTES

logger = logging.getLogger(__name__)

ALIVE_SECONDS: Final = 90.0
"""Maximum age of the last tick; an older one means a stuck scheduler, as it ticks every 30 s in any case."""


@dataclass(frozen=True, slots=True)
class Address:
    """An address to listen on."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """Parse `host:port`; raises `ValueError` with the remedy if it is invalid."""
        host, colon, port = text.rpartition(":")
        if not colon or not port.isdecimal() or not 0 <= int(port) <= 65535:
            raise ValueError(f"{text!r} is not an address; write HOST:PORT, as in 0.0.0.0:8080")
        return cls(host.strip("[]"), int(port))

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine (in a cluster: this pod) can reach it."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


@dataclass(slots=True)
class Heartbeats:
    """Sources of the signs of life. Ages are wall seconds, None where there was no sign yet."""

    age: Callable[[], float | None]
    """Returns the age of the last sign of life."""
    waits_for: Callable[[], str | None] = lambda: None
    """Returns the operator that acts instead of this one; None where this one acts."""
    snapshot: Callable[[], Snapshot | None] = lambda: None
    metrics: Callable[[], Awaitable[bytes]] | None = None


@asynccontextmanager
async def serve_health(pulse: Heartbeats, public: Address | None, private: Address | None) -> AsyncIterator[None]:
    """Serve `/healthz`, `/readyz` and `/metrics` on `public`, `/snapshot` on `private`.

    Raises `OSError` if it cannot listen on an address.
    """
    runners: list[web.AppRunner] = []
    everybody = {
        "/healthz": _handler(pulse, _healthz),
        "/readyz": _handler(pulse, _readyz),
        "/metrics": _metrics_handler(pulse),
    }
    try:
        for address, routes in ((public, everybody), (private, {"/snapshot": _handler(pulse, _snapshot)})):
            if address is not None:
                app = web.Application()
                for path, handler in routes.items():
                    app.router.add_get(path, handler)
                runner = web.AppRunner(app, access_log=None)
                runners.append(runner)
                await runner.setup()
                await web.TCPSite(runner, address.host or None, address.port).start()
        yield
    finally:
        for runner in runners:
            await runner.cleanup()


@asynccontextmanager
async def serve_posts(url: str, posts: Callable[[], Posts | None]) -> AsyncIterator[None]:
    """Listen on the port of `url`: on all addresses, or on the loopback if it names that. Raises `OSError`.

    The answer is 503 while `posts` returns None.
    """
    parts = urlsplit(url)
    port, host = parts.port or 80, parts.hostname or ""

    async def handle(request: web.Request) -> web.Response:
        acting = posts()
        if acting is None:
            return web.Response(status=503, text="another replica acts\n")
        return await acting.answer(request)

    app = web.Application(client_max_size=MAX_POST_BYTES)
    app.router.add_post(STATUS_ROUTE, handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, host if Address(host, port).is_loopback else None, port).start()
        yield
    finally:
        await runner.cleanup()


def _handler(
    pulse: Heartbeats, answer: Callable[[Heartbeats], web.Response]
) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def handle(_: web.Request) -> web.StreamResponse:
        return answer(pulse)

    return handle


def _metrics_handler(pulse: Heartbeats) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    one_at_a_time = asyncio.Lock()

    async def handle(_: web.Request) -> web.StreamResponse:
        if pulse.metrics is None:
            return web.Response(status=404, text="this operator has no metrics\n")
        async with one_at_a_time:
            body = await pulse.metrics()
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})

    return handle


def _healthz(pulse: Heartbeats) -> web.Response:
    age = pulse.age()
    other = pulse.waits_for()
    what = "the last tick" if other is None else f"waiting for {other or 'the lease'}; the last look at the lease"
    if age is None or age > ALIVE_SECONDS:
        since = "there was none yet" if age is None else f"{age:.0f} s ago, more than {ALIVE_SECONDS:.0f}"
        return web.Response(status=503, text=f"{what}: {since}\n")
    return web.Response(text=f"{what}: {age:.1f} s ago\n")


def _readyz(pulse: Heartbeats) -> web.Response:
    """Answer like `_healthz`, but 503 while the acting operator has not planned yet."""
    health = _healthz(pulse)
    if health.status == 200 and pulse.waits_for() is None and pulse.snapshot() is None:
        return web.Response(status=503, text="nothing was planned yet\n")
    return health


def _snapshot(pulse: Heartbeats) -> web.Response:
    snapshot = pulse.snapshot()
    if snapshot is None:
        other = pulse.waits_for()
        why = "nothing was planned yet" if other is None else f"this replica waits; {other or 'another'} acts"
        return web.Response(status=503, text=f"{why}\n")
    return web.Response(text=snapshot.to_json(), content_type="application/json")
