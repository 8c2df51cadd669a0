"""The process of a job's leader, from its start to its end."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from espalier_core.causes import cause_in
from espalier_core.types.reasons import Reason
from espalier_operator.job.observation import End, Incarnation
from espalier_operator.local.files import size, tail
from espalier_operator.local.layout import TRAINER_LOG
from espalier_operator.local.process import Process

PID_FILE: Final = "trainer.pid"
Starter = Callable[..., Process]
"""Starts a process: `Process`, or a replacement in tests."""


class LeaderProcess:
    """Starts leaders, one after the other, and notices how they end."""

    def __init__(self, directory: Path, start: Starter = Process) -> None:
        """Nothing runs yet; log and pid file go to `directory`."""
        self._directory, self._start = directory, start
        self.process: Process | None = None
        self.incarnation: Incarnation | None = None
        """The leader that was started last."""
        self._attempt = 0
        """Its attempt."""
        self.exit_code: int | None = None
        self._log_began = 0
        """Bytes of the log that earlier leaders have written."""

    @property
    def id(self) -> str:
        """Name of the leader that was started last, '' where there is none."""
        return "" if self.incarnation is None else self.incarnation.id

    @property
    def is_lost(self) -> bool:
        """Whether its GPUs are gone."""
        return self.incarnation is not None and self.incarnation.lost is not None

    def of(self, attempt: int) -> Incarnation | None:
        """Return the leader of this attempt; None if it was not started."""
        return self.incarnation if attempt == self._attempt else None

    def start(self, command: Sequence[str], variables: Mapping[str, str], attempt: int, now: float) -> None:
        """Start it with these environment variables in addition. Raises `OSError` where that is not possible."""
        log = self._directory / TRAINER_LOG
        self.exit_code, self._log_began = None, size(log)
        self.process = self._start(command, {**os.environ, **variables}, log, self._directory / PID_FILE)
        self._attempt = attempt
        self.incarnation = Incarnation(id=uuid.uuid4().hex, running=True, started_at=now)

    def poll(self) -> int | None:
        """Return the exit code of a process that has ended and is not recorded yet."""
        return None if self.process is None else self.process.poll()

    def ended(self, code: int, now: float) -> None:
        """Record its end."""
        if self.incarnation is not None:
            self.process, self.exit_code = None, code
            cause = "" if code == 0 else cause_in(tail(self._directory / TRAINER_LOG, self._log_began))
            end = End(code=code, at=now, external=False, message=cause)
            self.incarnation = replace(self.incarnation, running=False, end=end)

    def lose(self, reason: Reason) -> None:
        """Kill it: its GPUs are gone."""
        if self.process is not None and self.incarnation is not None:
            self.incarnation = replace(self.incarnation, lost=reason)
            self.process.kill()
