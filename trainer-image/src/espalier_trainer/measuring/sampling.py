"""In which steps to measure, so that it costs a bounded share of the time. Pure."""

from __future__ import annotations

from typing import Final

SHARE: Final = 0.01
"""Measuring the gradients' noise costs at most this share of the time of steps."""
LEAST_STEPS: Final = 10
"""From one measurement to the next, where they are cheap: more of them would not be independent news."""


class Sampling:
    """Earns a share of each step, and spends it on measurements.

    The first one is on credit, because its cost is not known: the next follows when it is paid back, and the cost of
    one more is earned.
    """

    def __init__(self, share: float = SHARE) -> None:
        self._share = share
        self._earned = self._cost = 0.0
        """Seconds to spend, below zero in debt; the expected cost of a measurement."""
        self._steps = 0

    def due(self, after: int = 0) -> bool:
        """Return whether to measure now, or in `after` more steps."""
        return self._steps + after >= LEAST_STEPS and self._earned >= self._cost

    def stepped(self, seconds: float) -> None:
        """Count a step that took `seconds`."""
        # No more than one measurement is saved up: a run that was slow before must not measure in each step now.
        self._earned = min(self._earned + self._share * seconds, self._cost)
        self._steps += 1

    def paid(self, seconds: float) -> None:
        """Count a measurement that cost `seconds`."""
        self._earned -= seconds
        self._cost = seconds if self._cost == 0 else (self._cost + seconds) / 2
        self._steps = 0
