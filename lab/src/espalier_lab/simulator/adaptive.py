"""Simulated jobs that choose their batch size with their workers, as under Pollux (Qiao et al., OSDI 2021, 3.2)."""

from __future__ import annotations

from typing import Final

from espalier_lab.simulator.batches import BestBatches
from espalier_lab.simulator.jobs import ProfiledJob
from espalier_lab.simulator.profiles import Application

MAX_WORKERS: Final = 64
"""Maximum number of workers of a job, as in the artifact."""


class AdaptiveJob(ProfiledJob):
    """A job with the best batch size for its workers and its gradient noise, chosen again in each epoch."""

    def __init__(
        self,
        name: str,
        submitted_at: float,
        workers: int,
        application: Application,
        batches: BestBatches,
        asked: ProfiledJob | None = None,
    ) -> None:
        """Take also the job with a batch size, as its author asked for it."""
        super().__init__(name, submitted_at, workers, application.initial_batch, application)
        self._asked = asked
        self.most_workers = min(MAX_WORKERS, application.max_batch // application.min_local)
        self._batches = batches

    def goodput(self, nodes: int, workers: int) -> float:
        """Return the goodput in this epoch with the best batch size, in steps of the initial batch size per second."""
        full, rest = divmod(workers, nodes)
        return self._batches.best((full + 1,) * rest + (full,) * (nodes - rest), self.epoch)[0]

    def seconds_alone(self) -> float:
        """Return its duration as its author asked for it, with the original batch size."""
        return super().seconds_alone() if self._asked is None else self._asked.seconds_alone()

    def _configure(self) -> None:
        _, atomic, accumulations = self._batches.best(self.placement, self.epoch)
        step, sync = self.application.times(self.placement, atomic)
        self._step = step + (step - sync) * accumulations
        self._trained_batch = self.workers * atomic * (accumulations + 1)

    def _measure(self) -> None:
        self._configure()
        super()._measure()
