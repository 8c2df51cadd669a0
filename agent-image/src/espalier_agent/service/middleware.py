"""ASGI middleware of the service: a limit on the size of requests, and their counts."""

from __future__ import annotations

from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from espalier_agent.service.errors import ErrorBody, error_response
from espalier_core.metrics.exporting import Metrics

ROUTES: Final = ("/v1/advice", "/v1/outcomes", "/v1/policy", "/healthz", "/readyz", "/metrics")
"""Paths that are counted by name; all others count as `other`, so that requests cannot create new series."""


class BodyLimit:
    """ASGI middleware that answers 413 to a body longer than `max_bytes`, declared or not."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self.app = app
        self.max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the body up to the limit, then hand it on; too much ends the request here."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        received: list[Message] = []
        size = 0
        while True:
            message = await receive()
            received.append(message)
            if message["type"] != "http.request":
                break
            size += len(message.get("body", b""))
            if size > self.max_bytes:
                body = ErrorBody(code="BodyTooLarge", message=f"the request has more than {self.max_bytes} bytes")
                await error_response(413, body, {"connection": "close"})(scope, receive, send)
                return
            if not message.get("more_body", False):
                break

        async def replay() -> Message:
            return received.pop(0) if received else await receive()

        await self.app(scope, replay, send)


class CountedRequests:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app = app
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand the request on, and count its answer when that begins.

        A fault of ours is answered further out, by Starlette itself; it is counted here and raised again.
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
