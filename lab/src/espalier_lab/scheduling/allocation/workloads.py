"""Episodes of jobs with all-reduce, made from traces: jobs of one trace at the times of another.

An episode takes a range of arrival times of one trace, and for each time a job of any trace. So it is as busy as the
traces, and never the same; holding a trace out excludes both its jobs and its times.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from espalier_lab.scheduling.allocation.rules import WORTHS, chosen_by
from espalier_lab.scheduling.learned.picture import PartialDecision
from espalier_lab.scheduling.seed_split import SeedSplit
from espalier_lab.simulator.jobs import SimulatedJob
from espalier_operator.policies.view import Decision, Elasticity, View


@dataclass(frozen=True, slots=True)
class Mixed:
    """A `forms.Workload` that mixes the jobs of traces."""

    traces: Sequence[Sequence[SimulatedJob]]
    """Fresh jobs of each trace, in order of arrival."""
    most_jobs: int
    """Maximum number of jobs in an episode."""

    def __call__(self, purpose: SeedSplit, index: int) -> list[SimulatedJob]:
        """Return the jobs of an episode."""
        rng = np.random.default_rng((71, purpose, index))
        times = [job.submitted_at for job in self.traces[int(rng.integers(len(self.traces)))]]
        first = int(rng.integers(max(1, len(times) - self.most_jobs + 1)))
        stretch = times[first : first + self.most_jobs]
        pool = [job for trace in self.traces for job in trace]
        picked = rng.integers(len(pool), size=len(stretch))
        return [
            fresh(pool[chosen], f"{number}", at - stretch[0])
            for number, (chosen, at) in enumerate(zip(picked, stretch, strict=True))
        ]


def fresh(job: SimulatedJob, name: str, submitted_at: float) -> SimulatedJob:
    """Return a fresh job like this one, under another name.

    The two share the cached speeds and the profile of their application.
    """
    one = copy.copy(job)
    one.name, one.submitted_at, one.held = name, submitted_at, []
    return one


@dataclass(frozen=True, slots=True)
class StepByStep:
    """A rule of `WORTHS` as a policy: one more worker at a time, for the job with the highest value."""

    name: str
    elasticity: ClassVar[Elasticity] = Elasticity.WORKERS
    queue_order: ClassVar[str] = "by what a worker is worth"

    def decide(self, view: View) -> Decision:
        """Return shares that sum up to at most all GPUs."""
        worth, picture = WORTHS[self.name], PartialDecision.of(view)
        while view.jobs and (mask := picture.mask()).any():
            chosen = int(chosen_by(worth(*picture.quantities())[None], mask[None])[0])
            if chosen == len(view.jobs):
                break
            picture.give(chosen)
        return picture.decision(view.now)
