"""The processes of a job that train with its leader."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from espalier_api import environment as names
from espalier_operator.facts import Role
from espalier_operator.local.process import Process

PID_FILES: Final = "worker-*.pid"
_MAX_FAILURES: Final = 5
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0


@dataclass(frozen=True, slots=True)
class Place:
    """A worker that is to run."""

    role: Role
    index: int
    devices: tuple[str, ...]
    real: bool = False
    """Whether the devices are CUDA's."""

    @property
    def key(self) -> Hashable:
        """What makes it the same worker: its GPUs. Its index may change, when one before it goes."""
        return self.devices or (self.role, self.index)

    @property
    def variables(self) -> dict[str, str]:
        """The environment that tells the worker's process its place."""
        place = {names.WORKER_ROLE: str(self.role), names.WORKER_INDEX: str(self.index)}
        return place | ({"CUDA_VISIBLE_DEVICES": ",".join(self.devices)} if self.real else {})


class Workers:
    """Keeps a process running for each place, as long as the place is wanted."""

    def __init__(
        self,
        directory: Path,
        warn: Callable[[str, str], None],
        stop_wall_seconds: float,
        start: Callable[..., Process] = Process,
    ) -> None:
        """Logs and pid files go to `directory`; `warn(reason, message)` is called where a process ends by itself.

        `stop_wall_seconds` pass from SIGTERM to SIGKILL.
        """
        self._directory, self._warn, self._stop_wall_seconds = directory, warn, stop_wall_seconds
        self._new = start
        self._running: dict[Hashable, tuple[Place, Process]] = {}
        self._ending: list[Process] = []
        self._failures: dict[Hashable, int] = {}
        self._start_at: dict[Hashable, float] = {}

    @property
    def has_ended(self) -> bool:
        """Whether no process of it runs."""
        return not self._running and not self._ending

    def look(self, wanted: Sequence[Place], command: Sequence[str], variables: Mapping[str, str]) -> None:
        """End processes of places that are not wanted, notice those that ended, start those that are missing."""
        self._ending = [process for process in self._ending if process.poll() is None]
        places = {place.key: place for place in wanted}
        for key, (place, process) in list(self._running.items()):
            code = process.poll()
            if code is not None:
                del self._running[key]
                self._failed(place, f"ended with exit code {code}")
            elif key not in places:
                process.terminate(self._stop_wall_seconds)
                self._ending.append(self._running.pop(key)[1])
        for key, place in places.items():
            if key not in self._running and time.monotonic() >= self._start_at.get(key, 0.0):
                self._start(place, command, variables)

    def end(self) -> None:
        """End all."""
        self.look((), (), {})

    def _start(self, place: Place, command: Sequence[str], variables: Mapping[str, str]) -> None:
        name = f"worker-{place.role}-{place.index}"
        try:
            process = self._new(
                command,
                {**os.environ, **variables, **place.variables},
                self._directory / f"{name}.log",
                self._directory / f"{name}-{time.monotonic_ns()}.pid",
            )
        except OSError as error:
            self._failed(place, f"cannot be started: {error}")
        else:
            self._running[place.key] = (place, process)

    def _failed(self, place: Place, message: str) -> None:
        key = place.key
        self._failures[key] = failures = self._failures.get(key, 0) + 1
        pause = min(_FIRST_PAUSE * 2 ** (failures - 1), _LONGEST_PAUSE)
        if failures > _MAX_FAILURES:
            self._start_at[key] = float("inf")
            again = f"it has failed {failures} times and is not started again"
        else:
            self._start_at[key] = time.monotonic() + pause
            again = f"started again in {pause:g} s"
        self._warn("WorkerFailed", f"{place.role} worker {place.index} {message}; {again}")
