"""Clocks of the scheduler, and back-off of failed operations."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol

logger = logging.getLogger(__name__)

SLEW: Final = 0.01
"""Part of the passing time by which the time of day approaches a machine's clock that was set."""
JUMP_SECONDS: Final = 30.0


class Clock(Protocol):
    """Rising seconds; all facts of a snapshot use the same origin and speed."""

    def now(self) -> float:
        """Return the time in the scheduler's seconds."""

    def wall_seconds(self, seconds: float) -> float:
        """Return the wall seconds in `seconds` of this clock."""


class ScaledClock:
    """Budget seconds: `scale` of them pass per wall second, from `start` on."""

    def __init__(self, scale: float = 1.0, start: float = 0.0, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Start the clock; raises `ValueError` where `scale` is not a positive finite number."""
        if not (math.isfinite(scale) and scale > 0):
            raise ValueError(f"time scale {scale} must be a positive number of budget seconds per second")
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
        """Return the time of day at `seconds` of this clock."""
        return self._zero_of_day + timedelta(seconds=self.wall_seconds(seconds - self._start))


def _steady() -> float:
    """Return the seconds of a clock that is never set and, if the platform has one, runs while the machine sleeps."""
    boot_time = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boot_time is None else time.clock_gettime(boot_time)


class WallClock:
    """The time of day (epoch seconds) without jumps: stored times mean the same to the next operator.

    Where the machine's clock is set, this clock approaches it slowly. Otherwise an hour could pass at once: budgets
    would be used up, and notices and deadlines over.
    """

    def __init__(self, wall: Callable[[], float] = time.time, steady: Callable[[], float] = _steady) -> None:
        """Start with the time of day."""
        self._wall, self._steady = wall, steady
        self._last = wall(), steady()
        self._warned = False

    def now(self) -> float:
        """Return the seconds since 1970."""
        (shown, at), steady = self._last, self._steady()
        passed = max(0.0, steady - at)
        ahead = self._wall() - (shown + passed)
        self._warn(ahead)
        now = shown + passed + max(-SLEW * passed, min(SLEW * passed, ahead))
        self._last = now, max(at, steady)
        return now

    def wall_seconds(self, seconds: float) -> float:
        """Return `seconds`."""
        return seconds

    def _warn(self, ahead: float) -> None:
        jumped = abs(ahead) > JUMP_SECONDS
        if jumped and not self._warned:
            logger.warning("the machine's clock was set by %+.0f s; times approach it at 1 %% of their pace", ahead)
        self._warned = jumped


def doubled(first: float, times: int, longest: float) -> float:
    """Return the wait after `times` earlier ones: `first` doubled `times` times, at most `longest`."""
    return min(first * 2.0 ** min(times, 30), longest)


@dataclass(slots=True)
class Backoff:
    """Doubling waits between `first` and `longest` seconds, until something succeeds."""

    first: float = 1.0
    longest: float = 30.0
    failures: int = 0
    until: float = 0.0
    """Time of the caller's clock before which no try is made."""

    def failed(self, now: float) -> float:
        """Delay the next try, and return the delay."""
        pause = doubled(self.first, self.failures, self.longest)
        self.until = now + pause
        self.failures += 1
        return pause

    def succeeded(self) -> None:
        """Reset the wait."""
        self.failures, self.until = 0, 0.0

    def holds(self, now: float) -> bool:
        """Return whether it is too early for another try."""
        return now < self.until
