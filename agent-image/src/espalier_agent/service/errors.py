"""Errors of the service: one shape, `{"code", "message", "field"?}`."""

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

from espalier_core.base import Record

logger = logging.getLogger(__name__)

LONGEST_SHOWN: Final = 60
"""Characters of a refused value that the answer repeats."""


class ErrorBody(Record):
    """What every error answers with."""

    code: str
    """For programs: `InvalidRequest`, `NotFound`, `MethodNotAllowed`, `BodyTooLarge`, `NotReady`, ..."""
    message: str
    """For people: what is wrong."""
    field: str | None = None
    """The field of the request that is wrong, as a dotted path."""


class ServiceError(Exception):
    """Ends a request with a status and an error body."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


def error_response(status: int, body: ErrorBody, headers: dict[str, str] | None = None) -> JSONResponse:
    """Return an error in the one shape."""
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
        # "Not Found" → "NotFound": the status' own phrase, as a program would spell it.
        code = "".join(word.capitalize() for word in HTTPStatus(error.status_code).phrase.split())
        message = f"{request.method} {request.url.path}: {error.detail}"
        headers = None if error.headers is None else dict(error.headers)
        return error_response(error.status_code, ErrorBody(code=code, message=message), headers)

    @app.exception_handler(Exception)
    async def internal_error(request: Request, error: Exception) -> JSONResponse:
        logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return error_response(500, ErrorBody(code="InternalError", message="the agent failed; its log says why"))


def _describe(errors: Sequence[Any]) -> ErrorBody:
    """Describe a validation failure by its first error; of the input it repeats a short text or a number."""
    first = errors[0]
    place = [str(part) for part in first["loc"] if part != "body"]
    message = str(first["msg"])
    if first["type"] == "json_invalid":
        # The location is an offset then, not a field.
        return ErrorBody(code="InvalidRequest", message=f"the body is not JSON: {first['ctx']['error']} at {place[-1]}")
    given = first.get("input")
    if isinstance(given, bytes) and not place:  # FastAPI parses no body of another type; curl's -d says it is a form
        message = "the body is not read as JSON: send the header `Content-Type: application/json`"
        return ErrorBody(code="InvalidRequest", message=message)
    if isinstance(given, str | int | float):
        shown = json.dumps(given)
        message += f"; it is {shown if len(shown) <= LONGEST_SHOWN else shown[: LONGEST_SHOWN - 3] + '...'}"
    if len(errors) > 1:
        message += f" (and {len(errors) - 1} more)"
    return ErrorBody(code="InvalidRequest", message=message, field=".".join(place) or None)
