"""The operator as it is run: processes of `python -m espalier_operator`."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx
from apiserver import ApiServer

from forked import Forked
from ports import free_port
from waiting import PATIENCE


class OperatorProcess:
    """One process; a context manager that ends it. Its log lies in `log`."""

    def __init__(
        self, server: ApiServer, directory: Path, name: str, *options: str, namespace: str = "default"
    ) -> None:
        """Not started yet."""
        self._http, self._private = free_port(), free_port()
        self.log = directory / f"{name}.log"
        self._folder = directory
        self._options = [
            f"--kubeconfig={server.kubeconfig}",
            f"--namespace={namespace}",
            f"--http=127.0.0.1:{self._http}",
            f"--snapshot-http=127.0.0.1:{self._private}",
            *options,
        ]
        self._environment = {**os.environ, "POD_NAME": name}

    def __enter__(self) -> Self:
        self.process = Forked(
            "espalier_operator", *self._options, env=self._environment, out=self.log, cwd=self._folder
        )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.process.kill()
        self.process.wait(20)

    @property
    def address(self) -> str:
        """Where it serves `/healthz` and `/metrics`."""
        return f"127.0.0.1:{self._http}"

    def says(self, text: str) -> bool:
        """Return whether its log has `text`; `AssertionError` where it has ended without it."""
        found = text in self.log.read_text()
        assert found or self.process.poll() is None, f"it ended:\n{self.log.read_text()[-2000:]}"
        return found

    def ask(self, path: str, *, private: bool = False) -> httpx.Response | None:
        """Return its answer over HTTP, None where it does not listen."""
        port = self._private if private else self._http
        try:
            return httpx.get(f"http://127.0.0.1:{port}{path}", timeout=5, trust_env=False)
        except httpx.TransportError:
            return None

    def end(self, sig: signal.Signals, seconds: float = PATIENCE) -> int:
        """Send a signal and return the exit code."""
        self.process.send_signal(sig)
        return self.process.wait(seconds)
