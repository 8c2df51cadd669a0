"""Remaining time by marginal gain: Optimus (Peng et al., EuroSys 2018, 4.1)."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from typing import ClassVar

from espalier_operator.policies.view import Candidate, Decision, Elasticity, Outlook, Share, View


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimusPolicy:
    """Each job gets its base workers; each worker more goes where it shortens the remaining time the most.

    The gain of a worker is (T(n) − T(n + 1)) × Q, with T(n) the seconds of a step with n workers and Q the remaining
    steps. Jobs of which neither is known get their base workers, and spare GPUs in equal parts. Where there are not
    enough GPUs for all base workers, jobs that need few go first; of equals those that say that they end soon, the
    soonest first, then the older.
    """

    name: str = "optimus"
    elasticity: ClassVar[Elasticity] = Elasticity.WORKERS

    @property
    def queue_order(self) -> str:
        """Return the order of admission in words."""
        return "by GPUs and age"

    def decide(self, view: View) -> Decision:
        """Return shares that sum up to all GPUs at most, the smallest first."""
        free = view.gpus
        workers: dict[str, int] = {}
        for job in sorted(view.jobs, key=_need):
            needs = job.min_workers * job.gpus_per_worker
            workers[job.key] = job.min_workers if needs <= free else 0
            free -= needs if needs <= free else 0
        jobs = {job.key: job for job in view.jobs}
        places = {key: place for place, key in enumerate(workers)}
        gains = [
            (-_gain(outlook, workers[key]), places[key], key)
            for key, outlook in view.outlooks.items()
            if 0 < workers[key] < jobs[key].max_workers
        ]
        heapq.heapify(gains)
        while gains and gains[0][0] < 0:
            _, place, key = gains[0]
            job = jobs[key]
            if job.gpus_per_worker > free:
                heapq.heappop(gains)
                continue
            free -= job.gpus_per_worker
            workers[key] += 1
            if workers[key] == job.max_workers:
                heapq.heappop(gains)
            else:
                heapq.heapreplace(gains, (-_gain(view.outlooks[key], workers[key]), place, key))
        order = sorted(view.jobs, key=lambda job: (workers[job.key] * job.gpus_per_worker, _need(job)[1]))
        return Decision(
            shares=tuple(self._share(job, workers[job.key], job.key in view.outlooks) for job in order),
            preempts=True,
            follows_progress=True,
        )

    def _share(self, job: Candidate, workers: int, known: bool) -> Share:
        spare = 0 if known or not workers else job.max_workers - workers
        return Share(job=job.key, workers=workers, spare=spare)


def _need(job: Candidate) -> tuple[int, float]:
    rest = job.rest
    return job.min_workers * job.gpus_per_worker, math.inf if rest is None or rest > job.service else rest


def _gain(outlook: Outlook, workers: int) -> float:
    """Return the seconds by which a worker more shortens the rest of the job."""
    return (outlook.step_seconds(workers) - outlook.step_seconds(workers + 1)) * outlook.remaining_steps
