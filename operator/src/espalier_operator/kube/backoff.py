"""Backoff: when a failed operation is retried."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Backoff:
    """Doubling waits between `first` and `longest` seconds, until something succeeds."""

    first: float = 1.0
    longest: float = 30.0
    failures: int = 0
    until: float = 0.0
    """Not before this time of the caller's clock."""

    def failed(self, now: float) -> None:
        """Delay the next try."""
        self.until = now + min(self.first * 2.0 ** min(self.failures, 30), self.longest)
        self.failures += 1

    def succeeded(self) -> None:
        """Reset."""
        self.failures, self.until = 0, 0.0

    def holds(self, now: float) -> bool:
        """Return whether it is too early for another try."""
        return now < self.until
