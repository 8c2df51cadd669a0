"""A limit on the size of requests: nobody may fill the service's memory."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from espalier_agent.service.errors import ErrorBody, error_response


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
