"""Middleware of the service: a limit on the size of requests, counts of requests, and one shape of errors,
`{"code", "message", "field"?}`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from espalier_core.base import Record
from espalier_core.metrics import Metrics

logger = logging.getLogger(__name__)


LONGEST_SHOWN: Final = 60
"""Maximum length of a refused value that the answer repeats, in characters."""
ROUTES: Final = ("/v1/advice", "/v1/outcomes", "/v1/policy", "/healthz", "/readyz", "/metrics")
"""Paths that are counted by name; all others count as `other`, so that requests cannot create new series."""


class ErrorBody(Record):
    """The body of every error answer."""

    code: str
    """Code for programs: `InvalidRequest`, `NotFound`, `MethodNotAllowed`, `BodyTooLarge`, `NotReady`, ..."""
    message: str
    """Description of the error for people."""
    field: str | None = None
    """The faulty field of the request, as a dotted path."""


class ServiceError(Exception):
    """Ends a request with a status and an error body."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


def error_response(status: int, body: ErrorBody, headers: dict[str, str] | None = None) -> JSONResponse:
    """Return an error answer."""
    return JSONResponse(body.to_json(), status_code=status, headers=headers)


def install_error_handlers(app: FastAPI) -> None:
    """Make every error of `app` answer with `ErrorBody`."""

    @app.exception_handler(ServiceError)
    async def service_error(_: Request, error: ServiceError) -> JSONResponse:
        headers = {"www-authenticate": "Bearer"} if error.status == HTTPStatus.UNAUTHORIZED else None
        return error_response(error.status, ErrorBody(code=error.code, message=str(error)), headers)

    @app.exception_handler(RequestValidationError)
    async def invalid_request(_: Request, error: RequestValidationError) -> JSONResponse:
        return error_response(422, _describe(error.errors()))

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> JSONResponse:
        # "Not Found" → "NotFound": the phrase of the status in the spelling of a program.
        code = "".join(word.capitalize() for word in HTTPStatus(error.status_code).phrase.split())
        message = f"{request.method} {request.url.path}: {error.detail}"
        headers = None if error.headers is None else dict(error.headers)
        return error_response(error.status_code, ErrorBody(code=code, message=message), headers)

    @app.exception_handler(Exception)
    async def internal_error(request: Request, error: Exception) -> JSONResponse:
        logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return error_response(500, ErrorBody(code="InternalError", message="the agent failed; its log says why"))


def _describe(errors: Sequence[Any]) -> ErrorBody:
    """Describe a validation failure by its first error; a short text or number of the input is repeated."""
    first = errors[0]
    place = [str(part) for part in first["loc"] if part != "body"]
    message = str(first["msg"])
    if first["type"] == "json_invalid":
        # The location is an offset then, not a field.
        return ErrorBody(code="InvalidRequest", message=f"the body is not JSON: {first['ctx']['error']} at {place[-1]}")
    given = first.get("input")
    if isinstance(given, bytes) and not place:  # FastAPI parses no other type; curl's -d sends a form
        message = "the body is not read as JSON: send the header `Content-Type: application/json`"
        return ErrorBody(code="InvalidRequest", message=message)
    if isinstance(given, str | int | float):
        shown = json.dumps(given)
        message += f"; it is {shown if len(shown) <= LONGEST_SHOWN else shown[: LONGEST_SHOWN - 3] + '...'}"
    if len(errors) > 1:
        message += f" (and {len(errors) - 1} more)"
    return ErrorBody(code="InvalidRequest", message=message, field=".".join(place) or None)


class BodyLimit:
    """ASGI middleware that answers 413 to a body longer than `max_bytes`, declared or not."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self.app = app
        self.max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the body up to the limit, then pass it on; a longer one ends the request here."""
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
    """ASGI middleware that counts requests by route and status."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app = app
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and count its answer when that begins.

        A server error is answered by Starlette itself, further out; it is counted here and raised again.
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
