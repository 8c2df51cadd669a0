"""A run of an episode: the simulator's driver by rounds, which requests a placement for the job at the queue's head.

Jobs wait in order of arrival, gangs start as a whole, and running jobs do not move; for a free number of workers, see
`elastic`. At each decision, the trainers' noisy measurements of steps are known.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np

from espalier_lab.scheduling.placement.candidates import Nodes, candidates
from espalier_lab.scheduling.placement.occupancy import Occupancy, PlacedJob
from espalier_lab.scheduling.placement.performance import PlacedStepTime, Truth, step_time
from espalier_lab.scheduling.placement.tasks import JobArrival, PlacementEpisode, PlacementTask, kinds
from espalier_lab.simulator.jobs import SimulatedJob
from espalier_lab.simulator.rounds import Rounds, SimulatedNode
from espalier_operator.policies import Policy
from espalier_operator.policies.fifo import FifoPolicy
from espalier_operator.policies.view import Decision, Share, View

Asked = TypeVar("Asked")
Chosen = TypeVar("Chosen")

NOISE: Final = 0.03
"""Standard deviation of the logarithm of a measurement."""


class ContendingJob(SimulatedJob):
    """A job whose speed depends on the other jobs on its nodes, and on its path through the network."""

    def __init__(self, arrival: JobArrival) -> None:
        """Create the job of an arrival."""
        super().__init__(arrival.name, arrival.at, arrival.gpus, arrival.gpus)
        self.kind, self.steps_left = arrival.kind, arrival.steps
        self.pause_seconds = 0.0  # nothing moves, so it is equal for each placement
        self.step_time = PlacedStepTime(kinds()[arrival.kind].compute_seconds, 0.0)
        """Duration of a step, averaged over the next ones."""

    def seconds_alone(self) -> float:
        """Return its duration on an ideal node."""
        return self.steps_left * kinds()[self.kind].compute_seconds

    def worth(self, workers: int) -> float:
        """Return the value of a step with this number of workers, in steps."""
        return 1.0

    def _train(self, now: float, seconds: float) -> bool:
        pace = self.step_time.total / self.worth(self.workers)
        if self.steps_left > seconds / pace:
            self.steps_left -= seconds / pace
            return False
        self.completed_at = now + self.steps_left * pace
        self.steps_left = 0.0
        return True


@dataclass(frozen=True, slots=True)
class PendingGang:
    """A job that must be placed now."""

    job: ContendingJob
    candidates: tuple[Nodes, ...]
    """Possible placements; at least one."""


class Running:
    """One run of an episode, with any jobs and any policy."""

    def __init__(self, episode: PlacementEpisode, job: Callable[[JobArrival], ContendingJob], policy: Policy) -> None:
        """Prepare."""
        family = self.family = episode.family
        self.episode = episode
        self.jobs = {arrival.name: job(arrival) for arrival in episode.arrivals}
        self.occupancy = Occupancy(family.nodes, family.node_gpus, family.rack_nodes)
        self.now = 0.0
        self.job_seconds = 0.0
        """Total seconds for which jobs have waited or run until `now`."""
        self.changes = 0
        """Number of changes of the jobs on the nodes."""
        self.measured_in = self._copied()
        """The occupancy during the currently measured steps: jobs that end now were still present."""
        self._noise = np.random.default_rng((9, *(int(arrival.steps) for arrival in episode.arrivals[:2])))
        nodes = [SimulatedNode(str(index), family.node_gpus) for index in range(family.nodes)]
        self._rounds = Rounds(list(self.jobs.values()), nodes, policy, self._moved)
        self._completed = 0.0
        self._shares: dict[str, Share] = {}
        self._known: tuple[int, PlacementTask | None] = (0, None)
        """The change and the task for which the speeds of jobs are valid."""

    @property
    def completion_seconds(self) -> list[float]:
        """Completion times of the complete jobs, in order of arrival."""
        return [job.completed_at - job.submitted_at for job in self.jobs.values() if job.completed_at is not None]

    @property
    def mean_seconds(self) -> float:
        """Mean completion time of the jobs, once all are complete."""
        return sum(self.completion_seconds) / len(self.jobs)

    def running(self) -> list[tuple[str, PlacedJob]]:
        """Return the running jobs and their placements."""
        return list(self.occupancy.jobs.items())

    def measured(self, name: str) -> PlacedStepTime:
        """Return the trainer's measurement of a running job's step."""
        true = self.jobs[name].step_time
        one, two = np.exp(self._noise.normal(0.0, NOISE, 2))
        return PlacedStepTime(true.compute * float(one), true.exchange * float(two))

    def _play(self, place: Callable[[View], Generator[Asked, Chosen, None]]) -> Generator[Asked, Chosen, None]:
        views = self._rounds.views()
        view = next(views, None)
        while view is not None:
            self._begin(view)
            yield from place(view)
            try:
                view = views.send(Decision(shares=tuple(self._shares.values())))
            except StopIteration:
                break
        self.now = max(job.completed_at or 0.0 for job in self.jobs.values())
        self.job_seconds = self.mean_seconds * len(self.jobs)

    def _begin(self, view: View) -> None:
        self.now = view.now
        for name in view.ended:
            job = self.jobs[name]
            self._completed += (job.completed_at or view.now) - job.submitted_at
            self._take_off(name)
        self.job_seconds = self._completed + sum(view.now - job.submitted_at for job in view.jobs)

    def _put(self, job: ContendingJob, nodes: Nodes) -> None:
        placed = PlacedJob(job.kind, nodes)
        self.occupancy.add(job.name, placed)
        self._shares[job.name] = _share(job.name, placed)
        self.changes += 1

    def _take_off(self, name: str) -> None:
        self.occupancy.remove(name)
        del self._shares[name]
        self.changes += 1

    def _moved(self, held: Mapping[str, Sequence[int]]) -> None:
        task = self.episode.task_at(self.now)
        if (self.changes, task) == self._known:
            return
        self._known = self.changes, task
        truth = Truth(task)
        for name, placed in self.occupancy.jobs.items():
            self.jobs[name].step_time = step_time(truth, self.occupancy, name, placed)
        self.measured_in = self._copied()

    def _copied(self) -> Occupancy:
        family = self.family
        jobs = self.occupancy.jobs.items()
        return Occupancy(family.nodes, family.node_gpus, family.rack_nodes, jobs)


class PlacementCluster(Running):
    """One run in which gangs wait in order of arrival, and running jobs do not move."""

    def __init__(self, episode: PlacementEpisode) -> None:
        """Prepare the run; `decisions` or `bursts` executes it."""
        super().__init__(episode, ContendingJob, FifoPolicy())

    def decisions(self) -> Generator[PendingGang, int, None]:
        """Run; answer each job that can be placed with the index of one of its candidates."""
        return self._play(self._place)

    def bursts(self) -> Generator[Sequence[ContendingJob], Sequence[Nodes], None]:
        """Run; answer all jobs that can be placed at a time with the nodes of each."""
        return self._play(self._place_together)

    def _place(self, view: View) -> Generator[PendingGang, int, None]:
        for job in self._waiting(view):
            choices = candidates(self.occupancy, job.requested)
            if not choices:
                return
            self._put(job, choices[(yield PendingGang(job, choices))])

    def _place_together(self, view: View) -> Generator[Sequence[ContendingJob], Sequence[Nodes], None]:
        free, jobs = sum(self.occupancy.free), []
        for job in self._waiting(view):
            if job.requested > free:
                break
            free -= job.requested
            jobs.append(job)
        if jobs:
            for job, nodes in zip(jobs, (yield jobs), strict=True):
                self._put(job, nodes)

    def _waiting(self, view: View) -> Iterator[ContendingJob]:
        return (self.jobs[candidate.key] for candidate in view.jobs if not candidate.workers)


def _share(name: str, placed: PlacedJob) -> Share:
    nodes = tuple(str(node) for node, count in placed.nodes for _ in range(count))
    return Share(job=name, workers=len(nodes), nodes=nodes)
