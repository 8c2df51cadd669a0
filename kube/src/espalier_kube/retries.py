"""Deadlines, and how often and when a request is tried again. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Retries:
    """How long one request may take, and how often it is tried. Seconds."""

    deadline: float = 10.0
    """For one try."""
    tries: int = 5
    first_wait: float = 0.1
    """Before the second try; doubles with each."""
    longest_wait: float = 5.0

    def wait(self, tried: int, retry_after: float | None = None, jitter: float = 1.0) -> float:
        """Return how long to wait after `tried` tries.

        `jitter`, from 0 to 1, spreads clients over time; `retry_after` is what the server asks for.
        """
        backoff = min(self.first_wait * 2.0 ** min(tried - 1, 100), self.longest_wait)
        return max(backoff * (0.5 + jitter / 2), min(retry_after or 0.0, self.longest_wait))
