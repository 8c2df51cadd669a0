"""What the history of a job says of it: its phase with the reason, and warnings."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TypedDict

from espalier_core.types.events import AnyEvent, JobChanged, Warned
from espalier_core.types.reasons import Reason
from espalier_core.types.status import JobPhase
from espalier_operator.local.history import History


class Stamp(TypedDict):
    """The common fields of the scheduler's events."""

    time: datetime
    used_seconds: float


class Journal:
    """Writes the scheduler's events about one job."""

    def __init__(self, history: History, used_seconds: Callable[[], float]) -> None:
        """Write into `history`; `used_seconds` returns how much of its time budget the job has used."""
        self.history, self._used_seconds = history, used_seconds
        self.phase, self.reason, self.message = JobPhase.PENDING, Reason.NO_FREE_GPU, ""
        self._said: tuple[JobPhase, Reason, str] | None = None

    def stamp(self) -> Stamp:
        """Return the common fields of an event that happens now."""
        return {"time": datetime.now(UTC), "used_seconds": self._used_seconds()}

    def add(self, event: AnyEvent) -> None:
        """Add an event."""
        self.history.add(event)

    def warn(self, reason: str, message: str) -> None:
        """Record a warning that does not stop the job."""
        self.add(Warned(**self.stamp(), reason=reason, message=message))

    def stands(self, phase: JobPhase, reason: Reason, message: str = "") -> None:
        """Record the job's phase and reason, with an event if they changed."""
        self.phase, self.reason, self.message = phase, reason, message
        if self._said != (phase, reason, message):
            self._said = (phase, reason, message)
            self.add(JobChanged(**self.stamp(), phase=phase, reason=reason, message=message))
