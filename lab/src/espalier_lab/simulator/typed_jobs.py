"""Simulated jobs with speeds that depend on the type of their GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

from espalier_lab.simulator.holdings import HeldSpan
from espalier_operator.policies.leases import LEASE_SECONDS

Kind = tuple[str, int]
"""Type of training and number of GPUs: jobs of one kind are equally fast."""


class MeasuredSpeedTable(Protocol):
    """Measured speeds by kind of job."""

    def steps_per_second(self, gpu_type: str, kind: Kind, beside: Kind | None = None) -> float:
        """Return the speed of a job of `kind`, alone or on the same GPUs as another; 0: it cannot run there."""


class TypedJob:
    """A job of a fixed number of steps and GPUs, and its state."""

    def __init__(
        self, name: str, submitted_at: float, kind: Kind, steps: int, speeds: MeasuredSpeedTable, *, priority: int = 0
    ) -> None:
        self.name, self.submitted_at, self.kind, self.priority = name, submitted_at, kind, priority
        self.origin = ""
        """File, line and field of its number of GPUs, for errors."""
        self.gpus: Final = kind[1]
        self.service = 0.0
        """GPU-seconds held; half of those on shared GPUs."""
        self.held_seconds = 0.0
        """Seconds for which it held GPUs in the last round."""
        self.held: list[HeldSpan] = []
        self.restarts = -1
        self.evictions = self.preemptions = 0
        self.gpu_types: Mapping[str, int] = {}
        """GPUs of the cluster by type, once it is simulated."""
        self.completed_at: float | None = None
        self._left: float = steps
        self._steps = steps
        self._speeds = speeds

    @property
    def remaining_steps(self) -> float:
        """Its true remaining steps, as for the policies of the paper."""
        return self._left

    def step_seconds(self, workers: int) -> float:
        """Return 1: the seconds of a step depend on its fixed number of GPUs and their type."""
        return 1.0

    @property
    def tried_workers(self) -> int:
        """Its number of GPUs, which is fixed."""
        return self.gpus

    def goodput(self, nodes: int, workers: int) -> float:
        """Return 1: the steps per second are left open too."""
        return 1.0

    def speed(self, gpu_type: str, beside: TypedJob | None = None) -> float:
        """Return its steps per second, alone or on the same GPUs as another job; 0: it cannot run there."""
        return self._speeds.steps_per_second(gpu_type, self.kind, None if beside is None else beside.kind)

    def isolated_seconds(self, contention: float, gpus: int) -> float:
        """Return its duration with 1 / `contention` of the GPUs of each type, in turns (Gavel, 4.2)."""
        parts = {each: count / (contention * self.gpus) for each, count in self.gpu_types.items() if count >= self.gpus}
        whole = max(1.0, sum(parts.values()))
        return self._steps / sum(part / whole * self.speed(each) for each, part in parts.items())

    def train(self, gpu_type: str, beside: TypedJob | None = None) -> float:
        """Make the whole steps that fit in a lease, at least one and at most the remaining ones; return the seconds."""
        speed = self.speed(gpu_type, beside)
        steps = min(max(1, int(speed * LEASE_SECONDS)), self._left)
        self._left -= steps
        return steps / speed

    def train_for(self, gpu_type: str, seconds: float) -> float:
        """Train for these seconds, including partial steps; return the used seconds, if its rest takes less."""
        speed = self.speed(gpu_type)
        used = min(seconds, self._left / speed)
        self._left = max(0.0, self._left - used * speed) if used == seconds else 0.0
        return used
