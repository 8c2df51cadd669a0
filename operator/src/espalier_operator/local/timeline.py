"""When simulated GPUs come and go."""

from __future__ import annotations

from collections.abc import Iterable

from espalier_operator.local.settings import GpuChange


class Timeline:
    """A clock that the run moves, and the changes along it."""

    def __init__(self, changes: Iterable[GpuChange], seconds: float = 0.0, done: int = 0) -> None:
        """Begin at `seconds` with the first `done` changes made already."""
        self._changes = sorted(changes, key=lambda change: change.at_seconds)
        self.seconds = seconds
        self.done = done

    def advance(self, seconds: float) -> list[GpuChange]:
        """Move on and return the changes that are due, in order."""
        self.seconds += seconds
        due = []
        while self.done < len(self._changes) and self._changes[self.done].at_seconds <= self.seconds:
            due.append(self._changes[self.done])
            self.done += 1
        return due

    @property
    def made(self) -> list[GpuChange]:
        """The changes that are over."""
        return self._changes[: self.done]

    def departing(self) -> tuple[int, float | None]:
        """Return the GPUs whose departure is announced, and the seconds until the first of them goes."""
        announced = [
            change
            for change in self._changes[self.done :]
            if change.change < 0 and change.at_seconds - change.notice_seconds <= self.seconds
        ]
        if not announced:
            return 0, None
        return -sum(change.change for change in announced), announced[0].at_seconds - self.seconds

    @property
    def has_arrivals_ahead(self) -> bool:
        """Whether more GPUs will come."""
        return any(change.change > 0 for change in self._changes[self.done :])
