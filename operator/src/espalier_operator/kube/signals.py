"""Measures the time from the event that an extra worker runs until its leader acknowledges the new allocation.

Times are epoch seconds. Grants of an earlier operator are not measured, because the time of their events is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(slots=True)
class Signal:
    """An allocation on its way to its leader."""

    uid: str
    job: str
    """Key of the job."""
    generation: int
    noticed_at: float
    written_at: float | None = None
    acknowledged_at: float | None = None


class Signals:
    """Grants that were not acknowledged yet."""

    def __init__(self, observe: Callable[[str, float], None]) -> None:
        """`observe` receives a stage (`written`, `acknowledged`) and its duration in seconds."""
        self._observe = observe
        self.trace: Callable[[Signal], None] = lambda signal: None
        """Called with each signal that is acknowledged."""
        self._noticed_at: float | None = None
        self._planned_from: float | None = None
        self._waiting: dict[str, Signal] = {}

    def noticed(self, now: float) -> None:
        """Take note that there is news; of a burst the first counts."""
        if self._noticed_at is None:
            self._noticed_at = now

    def looked(self) -> None:
        """Take note that all news up to now goes into the plan that is made next."""
        self._planned_from, self._noticed_at = self._noticed_at, None

    def granted(self, uid: str, generation: int, now: float, job: str = "") -> None:
        """Take note that the job of `uid` has more workers that run, as this generation of its allocation."""
        noticed_at = now if self._planned_from is None else self._planned_from
        self._waiting[uid] = Signal(uid, job, generation, noticed_at)

    def written(self, uid: str, generation: int, now: float) -> None:
        """Take note that this generation is in the job's status."""
        signal = self._waiting.get(uid)
        if signal is not None and signal.written_at is None and generation >= signal.generation:
            signal.written_at = now
            self._observe("written", max(0.0, now - signal.noticed_at))

    def acknowledged(self, uid: str, generation: int, now: float) -> None:
        """Take note that the job's leader knows of this generation."""
        signal = self._waiting.get(uid)
        if signal is not None and signal.written_at is not None and generation >= signal.generation:
            self._observe("acknowledged", max(0.0, now - signal.written_at))
            signal.acknowledged_at = now
            del self._waiting[uid]
            self.trace(signal)

    def forget(self, uid: str) -> None:
        """Take note that the job is gone, or over."""
        self._waiting.pop(uid, None)

    def waiting(self) -> Iterator[str]:
        """Yield the UIDs of jobs that have not acknowledged."""
        return iter(list(self._waiting))
