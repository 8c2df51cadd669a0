"""The policy server, which evaluates a policy file for the operator in a separate process, over HTTP.

It is stateless. A new file replaces the old one at the next request; an unusable one is reported, and the old one
continues. Without any usable one, requests are answered with the reason.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse

from espalier_core.files.reloading import ReloadedFiles
from espalier_lab.scheduling.product.reader import AllocationPolicyFile
from espalier_operator.policies.learned import PolicyFileError
from espalier_operator.policies.remote import QuestionError, question_of

logger = logging.getLogger(__name__)

MOST_BYTES: Final = 64 * 1024 * 1024
"""Maximum size of a request, in bytes. One about 1,000 jobs on 5,000 nodes has less than one million."""


class Served:
    """The newest usable policy of a path."""

    def __init__(self, path: Path) -> None:
        """The file is read at the first request."""
        self._path = path
        self._file: AllocationPolicyFile | None = None
        # Try again with each request: its disk may have been unavailable.
        self._files = ReloadedFiles(
            lambda: [path], lambda: AllocationPolicyFile(path), PolicyFileError, refused=self._refuse
        )

    def current(self) -> AllocationPolicyFile:
        """Return the policy. Raise `PolicyFileError` if there was no usable one yet."""
        file = self._files.look()
        if file is not None:
            if self._file is None or file.version != self._file.version:
                logger.info("%s: loaded policy %s, learnt from %s", self._path, file.version, file.lineage.learnt_from)
            self._file = file
        if self._file is None:
            raise PolicyFileError(str(self._files.problem))
        return self._file

    def _refuse(self, error: PolicyFileError) -> None:
        goes_on = "" if self._file is None else f"; {self._file.version} continues"
        logger.error("%s%s", error, goes_on)


def create_app(path: Path) -> FastAPI:
    """Return the service for the policy file at `path`, which may be created later."""
    app = FastAPI(title="Espalier policy server", docs_url=None, redoc_url=None, openapi_url=None)
    served, evaluating = Served(path), threading.Lock()

    def decide(body: bytes) -> JSONResponse:
        if not evaluating.acquire(blocking=False):
            return _problem(503, "it still evaluates the question before")
        try:
            return JSONResponse(served.current().answer(question_of(body).view).to_json())
        except QuestionError as error:
            return _problem(422, f"the question cannot be read: {error}")
        except PolicyFileError as error:
            return _problem(409, str(error))
        finally:
            evaluating.release()

    @app.post("/v1/decision")
    async def post_decision(request: Request) -> JSONResponse:
        """Return the allocation decision."""
        body = bytearray()
        async for piece in request.stream():
            body += piece
            if len(body) > MOST_BYTES:
                return _problem(413, f"the question has more than {MOST_BYTES} bytes")
        return await run_in_threadpool(decide, bytes(body))

    @app.get("/v1/policy")
    def get_policy() -> JSONResponse:
        """Describe the policy, and its origin."""
        try:
            with evaluating:
                file = served.current()
        except PolicyFileError as error:
            return _problem(409, str(error))
        return JSONResponse({"policy": file.version, "lineage": file.lineage.to_json()})

    @app.get("/healthz")
    def get_healthz() -> dict[str, Any]:
        """Liveness probe."""
        return {"status": "ok"}

    return app


def _problem(status: int, message: str) -> JSONResponse:
    return JSONResponse({"message": message}, status_code=status)
