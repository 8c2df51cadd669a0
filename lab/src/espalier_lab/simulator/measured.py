"""Simulated jobs with speeds measured on a real cluster, at the numbers of workers that they had there."""

from __future__ import annotations

from espalier_lab.simulator.jobs import SimulatedJob
from espalier_operator.model import JobFacts
from espalier_operator.policies.speed_models import speed_model_of
from espalier_operator.policies.view import SpeedModel


class MeasuredJob(SimulatedJob):
    """A job with the work of its base workers in `duration`, and the speed that its trainer measured.

    Unmeasured speeds scale as in `speed_models`. More workers end it sooner, as policies expect on a cluster, although
    a job with only a time budget trains there until that is used up.
    """

    def __init__(self, name: str, submitted_at: float, facts: JobFacts, duration: float, node_gpus: int) -> None:
        """Take the facts of the job, whose workers have one GPU each, on nodes with `node_gpus` GPUs."""
        super().__init__(name, submitted_at, facts.terms.min_replicas, facts.terms.max_replicas)
        self.least_workers = self.requested
        self._measured, self._duration = speed_model_of(facts, node_gpus), duration
        self._seconds: dict[int, float] = {}
        self._left = duration / self.step_seconds(self.requested)

    @property
    def speed_model(self) -> SpeedModel:
        """Its measured speed, and its remaining work."""
        return self

    @property
    def remaining_steps(self) -> float:
        """Remaining steps of the base workers."""
        return self._left

    @property
    def tried_workers(self) -> int:
        """Maximum number of workers with which it was measured."""
        return self._measured.tried_workers

    def step_seconds(self, workers: int) -> float:
        """Return the seconds in which `workers` workers do the work of one base step."""
        if workers not in self._seconds:
            self._seconds[workers] = self._measured.step_seconds(workers)
        return self._seconds[workers]

    def goodput(self, nodes: int, workers: int) -> float:
        """Return the base steps per second."""
        return self._measured.goodput(nodes, workers)

    def seconds_alone(self) -> float:
        """Return its duration with its base workers."""
        return self._duration

    def _train(self, now: float, seconds: float) -> bool:
        step = self.step_seconds(self.workers)
        if self._left * step > seconds:
            self._left -= seconds / step
            return False
        self.completed_at = now + self._left * step
        self._left = 0.0
        return True
