"""What tests know of the speed of a job: `Amdahl`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Amdahl:
    """A step has a part that does not get faster, and one that workers share (seconds with one)."""

    remaining_steps: float
    serial: float
    shared: float
    tried_workers: int = 1

    def step_seconds(self, workers: int) -> float:
        """Return the seconds of a step."""
        return self.serial + self.shared / workers

    def goodput(self, nodes: int, workers: int) -> float:
        """Return steps a second."""
        return 1 / self.step_seconds(workers)
