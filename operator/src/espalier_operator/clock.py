"""The clocks that the scheduler is run by."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    """Seconds that only rise; on what they count from and how fast they go, all facts of a snapshot agree."""

    def now(self) -> float:
        """Return the time in the scheduler's seconds."""

    def wall_seconds(self, seconds: float) -> float:
        """Return how many seconds of wall time `seconds` of this clock are."""


class ScaledClock:
    """Budget seconds: `scale` of them pass in a second of wall time, from `start` on."""

    def __init__(self, scale: float = 1.0, start: float = 0.0, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Begin to count; `ValueError` where `scale` is not a positive finite number."""
        if not (math.isfinite(scale) and scale > 0):
            raise ValueError(f"time scale {scale} must be a positive number of budget seconds in a second")
        self._scale, self._start, self._monotonic = scale, start, monotonic
        self._zero = monotonic()
        self._zero_of_day = datetime.now(UTC)

    def now(self) -> float:
        """Return the budget seconds since the run began, earlier incarnations included."""
        return self._start + (self._monotonic() - self._zero) * self._scale

    def wall_seconds(self, seconds: float) -> float:
        """Return `seconds / scale`."""
        return seconds / self._scale

    def time_of_day(self, seconds: float) -> datetime:
        """Return what a wall clock shows, or showed, at `seconds` of this one."""
        return self._zero_of_day + timedelta(seconds=self.wall_seconds(seconds - self._start))
