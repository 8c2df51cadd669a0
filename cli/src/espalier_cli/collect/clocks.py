"""The clock of a run: virtual time, or the wall's."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from espalier_api.architecture import Architecture
from espalier_trainer.scheduler import VirtualScheduler


@dataclass
class WallScheduler(VirtualScheduler):
    """Real time, with arrivals that are known beforehand."""

    time_scale: float = 1.0
    """Budget seconds in a wall second: less than 1 where steps are to count as if they were faster."""
    _started: float = field(init=False, default=0.0)
    _used_before: float = field(init=False, default=0.0)

    def start(self, used_seconds: float) -> None:
        """Begin to count from `used_seconds`."""
        self._used_before = used_seconds
        self._started = time.monotonic()

    def used_seconds(self) -> float:
        """Return the seconds used."""
        self._used = self._used_before + (time.monotonic() - self._started) * self.time_scale
        return self._used

    def time_left(self) -> float:
        """Return the seconds left."""
        return max(0.0, self.budget_seconds - self.used_seconds())

    def wall_time_left(self) -> float:
        """Return the wall seconds left."""
        return self.time_left() / self.time_scale

    def step_finished(self, architecture: Architecture | None) -> None:
        """Nothing: the clock moves by itself."""
