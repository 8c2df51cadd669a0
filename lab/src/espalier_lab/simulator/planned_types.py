"""Jobs of a trace with types of GPU, for the driver by plans: each trains at the speed of its type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from espalier_lab.simulator.jobs import RESTART_SECONDS, SimulatedJob
from espalier_lab.simulator.latencies import Latencies
from espalier_lab.simulator.rounds import SimulatedNode
from espalier_lab.simulator.typed import TypedNode, check_types, gpus_by_type
from espalier_lab.simulator.typed_jobs import TypedJob


class PlannedTypedJob(SimulatedJob):
    """A job with a fixed number of steps and GPUs, one GPU per worker."""

    def __init__(self, job: TypedJob, pause_seconds: float) -> None:
        """Take a job that has not begun; `pause_seconds` is its pause after a change of its GPUs."""
        super().__init__(job.name, job.submitted_at, job.gpus, job.gpus)
        self.origin, self.priority, self.pause_seconds = job.origin, job.priority, pause_seconds
        self.least_workers = job.gpus
        self._job = job
        self.runs_on = tuple(each for each in job.gpu_types if job.speed(each) > 0)

    @property
    def speed_model(self) -> TypedJob:
        """Its true remaining work; its speed depends only on the type."""
        return self._job

    def speed(self, gpu_type: str) -> float:
        """Return its true steps per second on GPUs of a type; 0: it cannot run there."""
        return self._job.speed(gpu_type)

    def seconds_alone(self) -> float:
        """Return its duration with the requested GPUs, on each type in turn."""
        return self._job.isolated_seconds(1.0, 0)

    def isolated_seconds(self, contention: float, gpus: int) -> float:
        """Return its duration with 1 / `contention` of the GPUs of each type, in turns (Gavel, 4.2)."""
        return self.start_seconds + self._job.isolated_seconds(contention, gpus)

    def _train(self, now: float, seconds: float) -> bool:
        used = self._job.train_for(self.gpu_type or "", seconds)
        if not self._job.remaining_steps:
            self.completed_at = now + used
        return True


class TrueSpeeds:
    """`policies.view.Speeds` of such jobs. On a cluster, jobs do not share GPUs."""

    def __init__(self, jobs: Mapping[str, PlannedTypedJob]) -> None:
        self._jobs = jobs

    def steps_per_second(self, job: str, gpu_type: str, beside: str | None = None) -> float:
        """Return the true steps per second of `job`; 0 if it cannot run, and with another job."""
        return self._jobs[job].speed(gpu_type) if beside is None else 0.0


def planned_types(
    jobs: Sequence[TypedJob], nodes: Sequence[TypedNode], latencies: Latencies
) -> tuple[list[PlannedTypedJob], list[SimulatedNode], Latencies]:
    """Return the arguments of `Planned`: jobs, nodes, latencies. Raise `TraceError` for a job that never fits.

    Without latencies moving costs nothing, as in Gavel's simulator. Speeds do not depend on nodes, so jobs stay where
    the planner puts them.
    """
    check_types(jobs, gpus_by_type(nodes))
    pause: Final = 0.0 if latencies.restarts_move else RESTART_SECONDS
    machines = [SimulatedNode(f"{node.gpu_type}-{index}", node.gpus, node.gpu_type) for index, node in enumerate(nodes)]
    return [PlannedTypedJob(job, pause) for job in jobs], machines, replace(latencies, restarts_move=False)
