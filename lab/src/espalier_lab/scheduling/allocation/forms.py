"""The two forms of the environment: DL2's cluster in slots, and jobs of the simulator with all-reduce."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from espalier_lab.scheduling.allocation.slots import Slots
from espalier_lab.scheduling.allocation.source import source
from espalier_lab.scheduling.allocation.tables import OPTIONS
from espalier_lab.scheduling.allocation.traces import draw
from espalier_lab.scheduling.learned.description import WORKERS_AND_SERVERS, WORKERS_ONLY, NetworkInputs
from espalier_lab.scheduling.learned.picture import PartialDecision
from espalier_lab.scheduling.seed_split import SeedSplit
from espalier_lab.simulator.jobs import SimulatedJob
from espalier_lab.simulator.rounds import Rounds, SimulatedNode
from espalier_operator.policies.marginal import OptimusPolicy
from espalier_operator.policies.view import Decision, View

Mask = NDArray[np.bool_]


class AllocationEpisode(Protocol):
    """One running episode."""

    def seen(self) -> tuple[NetworkInputs, Mask]:
        """Return the view of the present jobs, and the mask of choices, (jobs × options + 1)."""

    def take(self, chosen: int) -> float:
        """Apply a choice; return the total seconds for which jobs were present meanwhile."""

    @property
    def over(self) -> bool:
        """Whether all jobs are complete."""

    @property
    def mean_seconds(self) -> float:
        """Mean completion time, once the episode is over."""


class Form(Protocol):
    """A source of episodes."""

    @property
    def options(self) -> tuple[str, ...]:
        """The resources of which a job can get more."""

    @property
    def jobs(self) -> int:
        """Maximum number of jobs present at a time."""

    def begin(self, purpose: SeedSplit, index: int) -> AllocationEpisode:
        """Begin the episode of this number."""


class SlotForm:
    """DL2's cluster: workers and parameter servers, in slots of 20 minutes."""

    def __init__(self, nodes: int = 96) -> None:
        """Create it for this number of nodes."""
        self.nodes, self.jobs = nodes, source().jobs
        self.options = WORKERS_AND_SERVERS

    def begin(self, purpose: SeedSplit, index: int) -> AllocationEpisode:
        """Begin the episode of this number."""
        return _SlotRun(Slots(source(), self.nodes, [draw(source(), purpose, index)]))


_ONLY = np.zeros(1, np.int64)
"""The row of a single episode."""


class _SlotRun:
    def __init__(self, slots: Slots) -> None:
        self._slots = slots

    def seen(self) -> tuple[NetworkInputs, Mask]:
        seen, mask = self._slots.seen(self._slots.window)
        return NetworkInputs(seen.jobs[0], seen.options[0], seen.cluster[0], seen.present[0]), mask[0]

    def take(self, chosen: int) -> float:
        slots, window = self._slots, self._slots.window
        if chosen == window.shape[1] * OPTIONS:
            return float(slots.stop(_ONLY).spent.sum()) * slots.source.slot_seconds
        slots.give(_ONLY, window[:, chosen // OPTIONS], np.array([chosen % OPTIONS]))
        return 0.0

    @property
    def over(self) -> bool:
        return bool(self._slots.over[0])

    @property
    def mean_seconds(self) -> float:
        return float(self._slots.completion_slots(0).mean()) * self._slots.source.slot_seconds


Workload = Callable[[SeedSplit, int], Sequence[SimulatedJob]]
"""Returns the jobs of the episode with this number. New ones each time: an episode uses them up."""


class WorkerForm:
    """Jobs of the simulator with all-reduce, by its rounds; observations are a policy's on a cluster."""

    def __init__(self, workload: Workload, nodes: Sequence[SimulatedNode], most_jobs: int) -> None:
        """Create it for at most `most_jobs` jobs on these nodes."""
        self.options, self.jobs = WORKERS_ONLY, most_jobs
        self.gpus = sum(node.gpus for node in nodes)
        self._workload, self._nodes = workload, nodes

    def begin(self, purpose: SeedSplit, index: int) -> WorkerRun:
        """Begin the episode of this number."""
        return WorkerRun(self._workload(purpose, index), self._nodes)


class Spent(NamedTuple):
    """The course of a period for a job that was present at its beginning."""

    job: int
    """Index among the jobs of the episode."""
    seconds: float
    """Seconds for which it was present."""
    paused: float
    """Seconds of that in which it could not train, because its workers changed."""
    part: float
    """Its speed with its workers, relative to its best speed."""
    ended: bool


class Period(NamedTuple):
    """The time from one decision to the next."""

    seconds: float
    jobs: tuple[Spent, ...]


class WorkerRun:
    """One run of the simulator by rounds; each view is answered by a decision made in steps."""

    def __init__(self, jobs: Sequence[SimulatedJob], nodes: Sequence[SimulatedNode]) -> None:
        """Run until the first decision."""
        self._jobs = jobs
        self.places = {job.name: place for place, job in enumerate(jobs)}
        self._views: Generator[View, Decision, None] = Rounds(jobs, nodes, OptimusPolicy()).views()
        self._view: View | None = None
        self.picture: PartialDecision | None = None
        """The decision in progress."""
        self.period = Period(0.0, ())
        """The period since the last decision."""
        self._spent = self._told = 0.0
        self._look(next(self._views, None))

    def begun(self) -> PartialDecision:
        """Return the decision in progress, which exists until the episode is over."""
        assert self.picture is not None  # noqa: S101  (not called when the episode is over)
        return self.picture

    def seen(self) -> tuple[NetworkInputs, Mask]:
        """Return the view of the present jobs, and the mask of choices."""
        picture = self.begun()
        return picture.inputs(), picture.mask()

    def take(self, chosen: int) -> float:
        """Apply a choice; return the total seconds for which jobs were present meanwhile."""
        picture = self.begun()
        assert self._view is not None  # noqa: S101
        if chosen < len(picture.jobs):
            picture.give(chosen)
            if picture.mask().any():
                return 0.0
        self._answer(self._view, picture)
        spent, self._told = self._spent - self._told, self._spent
        return spent

    @property
    def over(self) -> bool:
        """Whether all jobs are complete."""
        return self.picture is None

    @property
    def mean_seconds(self) -> float:
        """Mean completion time, once the episode is over."""
        return self._total() / len(self._jobs)

    def _answer(self, view: View, picture: PartialDecision) -> None:
        jobs = [self._jobs[self.places[job.key]] for job in picture.jobs]
        restarts, parts = [job.restarts for job in jobs], picture.speed_parts()
        try:
            self._look(self._views.send(picture.decision(view.now)))
        except StopIteration:
            self._look(None)
        now = max(job.completed_at or 0.0 for job in jobs) if self._view is None else self._view.now
        self.period = Period(
            now - view.now,
            tuple(
                Spent(
                    job=self.places[job.name],
                    seconds=(now if job.completed_at is None else job.completed_at) - view.now,
                    paused=job.pause_seconds if job.restarts > before else 0.0,
                    part=float(part),
                    ended=job.completed_at is not None,
                )
                for job, before, part in zip(jobs, restarts, parts, strict=True)
            ),
        )

    def _look(self, view: View | None) -> None:
        """Go to the next view; a view without choices is answered at once."""
        self._view, self.picture = view, None
        if view is None:
            self._spent = self._total()
            return
        ended = sum(job.completed_at - job.submitted_at for job in self._jobs if job.completed_at is not None)
        self._spent = ended + sum(view.now - job.submitted_at for job in view.jobs)
        self.picture = PartialDecision.of(view)

    def _total(self) -> float:
        return sum((job.completed_at or 0.0) - job.submitted_at for job in self._jobs)
