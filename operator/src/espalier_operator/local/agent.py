"""The agent as a local process."""

from __future__ import annotations

import logging
import math
import os
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from espalier_operator.clock import Backoff
from espalier_operator.local.layout import AGENT_LOG
from espalier_operator.local.process import Process

logger = logging.getLogger(__name__)

PID_FILE = "agent.pid"
MAX_RESTARTS: Final = 5


class Agent:
    """Starts the agent and starts it again when it ends, a few times, always at the same address.

    The port is chosen here, so that trainers can get the address before the agent has imported anything, and so
    that the address outlives a restart. Until it answers, and if it never does, a job's fallback decides.
    """

    def __init__(self, command: Sequence[str], directory: Path, restart_wall_seconds: float) -> None:
        """Choose the address; nothing is started before `keep_running`."""
        port = _free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._argv = [*command, "--port", str(port), "--url-file", str((directory / "agent.url").resolve())]
        self._directory = directory
        self._process: Process | None = None
        self._backoff = Backoff(first=restart_wall_seconds, longest=math.inf)

    def keep_running(self) -> None:
        """Start it if it does not run and may."""
        if self._process is not None:
            code = self._process.poll()
            if code is None:
                return
            self._process = None
            self._backoff.failed(time.monotonic())
            logger.warning("the agent ended with exit code %d; see %s", code, self._directory / AGENT_LOG)
        if self._backoff.failures > MAX_RESTARTS or self._backoff.holds(time.monotonic()):
            return
        try:
            self._process = Process(self._argv, os.environ, self._directory / AGENT_LOG, self._directory / PID_FILE)
        except OSError as error:
            self._backoff.failures = MAX_RESTARTS + 1
            logger.warning("the agent cannot be started: %s", error)

    def end(self, grace_wall_seconds: float) -> None:
        """Begin to end it."""
        if self._process is not None:
            self._process.terminate(grace_wall_seconds)

    def has_ended(self) -> bool:
        """Return whether no process of it is left."""
        return self._process is None or self._process.poll() is not None


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
