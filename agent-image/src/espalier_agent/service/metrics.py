"""Counts the requests that are answered, by path and HTTP code."""

from __future__ import annotations

from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from espalier_api.exporting import Metrics

ROUTES: Final = ("/v1/advice", "/v1/outcomes", "/v1/policy", "/healthz", "/readyz", "/metrics")
"""Counted by name; whatever else is asked for is `other`, so that nobody makes series by asking."""


class CountedRequests:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app = app
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand the request on, and count its answer when that begins.

        A fault of ours is answered further out, by Starlette itself; it is counted here, and goes on.
        """
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        route = scope["path"] if scope["path"] in ROUTES else "other"
        begun = False

        async def counted(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                self.metrics.count("espalier_agent_requests_total", route, str(message["status"]))
            await send(message)

        try:
            await self.app(scope, receive, counted)
        except Exception:
            if not begun:
                self.metrics.count("espalier_agent_requests_total", route, "500")
            raise
