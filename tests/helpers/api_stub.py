"""An HTTP server of a test's own, and clients that take it for an API server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web
from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.configuration import Configuration

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[tuple[ApiClient, int]]:
    """Serve every path on the loopback with `handler`; give a client of that as an API server, and the port."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port: int = site._server.sockets[0].getsockname()[1]
    configuration = Configuration(host=f"http://127.0.0.1:{port}")
    configuration.client_session_kwargs = {"trust_env": False}
    api = ApiClient(configuration)
    try:
        yield api, port
    finally:
        await api.close()
        await runner.cleanup()
