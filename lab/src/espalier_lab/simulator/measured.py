"""Simulated jobs whose speed was measured on a real cluster, with the numbers of workers that they had there."""

from __future__ import annotations

from espalier_lab.simulator.jobs import SimulatedJob
from espalier_operator.model import JobFacts
from espalier_operator.policies.speed_models import speed_model_of
from espalier_operator.policies.view import SpeedModel


class MeasuredJob(SimulatedJob):
    """A job that does the work that its base workers would do in `duration`, as fast as its trainer measured.

    What was never measured scales as `speed_models` expects. More workers end it sooner, as policies see it on a
    cluster, where a job that has a time budget alone trains on until that is used up.
    """

    def __init__(self, name: str, submitted_at: float, facts: JobFacts, duration: float, node_gpus: int) -> None:
        """Take what is known of the job, whose workers have one GPU each, on nodes with `node_gpus` GPUs."""
        super().__init__(name, submitted_at, facts.terms.min_replicas, facts.terms.max_replicas)
        self.least_workers = self.requested
        self._measured, self._duration = speed_model_of(facts, node_gpus), duration
        self._seconds: dict[int, float] = {}
        self._left = duration / self.step_seconds(self.requested)

    @property
    def speed_model(self) -> SpeedModel:
        """Its speed as far as it was measured, and what is left of its work."""
        return self

    @property
    def remaining_steps(self) -> float:
        """Steps of the base workers until it is complete."""
        return self._left

    @property
    def tried_workers(self) -> int:
        """The most workers with which it was measured."""
        return self._measured.tried_workers

    def step_seconds(self, workers: int) -> float:
        """Return the seconds in which `workers` workers do the work of one step of the base workers."""
        if workers not in self._seconds:
            self._seconds[workers] = self._measured.step_seconds(workers)
        return self._seconds[workers]

    def goodput(self, nodes: int, workers: int) -> float:
        """Return the steps of the base workers whose work is done in a second."""
        return self._measured.goodput(nodes, workers)

    def seconds_alone(self) -> float:
        """Return how long it takes with its base workers."""
        return self._duration

    def _train(self, now: float, seconds: float) -> bool:
        step = self.step_seconds(self.workers)
        if self._left * step > seconds:
            self._left -= seconds / step
            return False
        self.completed_at = now + self._left * step
        self._left = 0.0
        return True
