"""Workers by marginal gain: Optimus (Peng et al., EuroSys 2018, 4.1), and `soonest`, for jobs that end soon.

Base workers are handed out in an order, then each further one goes to the job to which it is worth the most. `soonest`
is a rule of this project, found while allocation was learned.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

from espalier_operator.policies.view import Candidate, Decision, Elasticity, Share, SpeedModel, View, remaining_steps

Worth = Callable[[Candidate, int], float]
"""What one more worker is worth to a job, by the number that it has."""
_SOON_SECONDS: Final = 60.0
"""Jobs that end sooner than that count about the same."""


def hand_out(order: Iterable[Candidate], known: Iterable[str], gpus: int, worth: Worth) -> dict[str, int]:
    """Return the workers of each job, in `order`. In it they get their base workers; one that needs too many waits.

    Of the jobs of which more is `known`, each further worker goes where it is worth the most, and more than 0. Of equal
    ones, the first in `order` comes first. A job whose next worker does not fit gets no more.
    """
    workers, free = dict[str, int](), gpus
    jobs = list(order)
    for job in jobs:
        needs = job.min_workers * job.gpus_per_worker
        workers[job.key] = job.min_workers if needs <= free else 0
        free -= needs if needs <= free else 0
    growing = set(known)
    heap = [
        (-worth(job, workers[job.key]), place, job)
        for place, job in enumerate(jobs)
        if job.key in growing and 0 < workers[job.key] < job.max_workers
    ]
    heapq.heapify(heap)
    while heap and heap[0][0] < 0:
        _, place, job = heap[0]
        if job.gpus_per_worker > free:
            heapq.heappop(heap)
            continue
        free -= job.gpus_per_worker
        workers[job.key] += 1
        if workers[job.key] == job.max_workers:
            heapq.heappop(heap)
        else:
            heapq.heapreplace(heap, (-worth(job, workers[job.key]), place, job))
    return workers


def share_of(job: Candidate, workers: int, *, known: bool) -> Share:
    """Return a share of `workers`, and of spare ones for a job of which no more is known, while nobody needs them."""
    return Share(job=job.key, workers=workers, spare=0 if known or not workers else job.max_workers - workers)


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
        workers = hand_out(
            sorted(view.jobs, key=_need),
            view.speed_models,
            view.gpus,
            lambda job, count: _gain(view.speed_models[job.key], count),
        )
        order = sorted(view.jobs, key=lambda job: (workers[job.key] * job.gpus_per_worker, _need(job)[1]))
        return Decision(
            shares=tuple(share_of(job, workers[job.key], known=job.key in view.speed_models) for job in order),
            preempts=True,
            follows_progress=True,
        )


def _need(job: Candidate) -> tuple[int, float]:
    rest = job.rest
    return job.min_workers * job.gpus_per_worker, math.inf if rest is None or rest > job.service else rest


def _gain(speed_model: SpeedModel, workers: int) -> float:
    """Return the seconds by which a worker more shortens the rest of the job."""
    return (speed_model.step_seconds(workers) - speed_model.step_seconds(workers + 1)) * speed_model.remaining_steps


@dataclass(frozen=True, slots=True, kw_only=True)
class SoonestPolicy:
    """Workers go where the logarithm of the speedup is largest by GPU, with more weight for jobs that end soon.

    A worker more is worth log(T(n) / T(n + 1)) / GPUs × (60 s + rest) ** -½, with T(n) the seconds of a step with n
    workers, and the rest that of the job with its best number of workers. Before that, all jobs get their base workers;
    where these do not fit, those come first for which 1 / GPUs × (60 s + rest) ** -½ is largest. A job of which neither
    is known counts as the others do on average, and gets spare GPUs in equal parts.
    """

    name: str = "soonest"
    elasticity: ClassVar[Elasticity] = Elasticity.WORKERS

    @property
    def queue_order(self) -> str:
        """Return the order of admission in words."""
        return "by GPUs and by how soon they end"

    def decide(self, view: View) -> Decision:
        """Return shares that sum up to all GPUs at most, in the order in which jobs start."""
        weights = weights_of(view)
        order = sorted(view.jobs, key=lambda job: (-weights[job.key] / _base_gpus(job), job.submitted_at, job.key))

        def worth(job: Candidate, workers: int) -> float:
            return weights[job.key] / max(1, job.gpus_per_worker) * _log_gain(view.speed_models[job.key], workers)

        workers = hand_out(order, view.speed_models, view.gpus, worth)
        return Decision(
            shares=tuple(share_of(job, workers[job.key], known=job.key in view.speed_models) for job in order),
            preempts=True,
            follows_progress=True,
        )


def _base_gpus(job: Candidate) -> int:
    return max(1, job.min_workers * job.gpus_per_worker)


def _log_gain(speed_model: SpeedModel, workers: int) -> float:
    now, then = speed_model.step_seconds(workers), speed_model.step_seconds(workers + 1)
    return math.log(now / then) if now > 0 < then else 0.0


def weights_of(view: View) -> Mapping[str, float]:
    """Return by job how much it counts: (60 s + rest) ** -½, with the rest at its best number of workers."""
    speeds = [_best_speed(view, job) for job in view.jobs]
    steps = remaining_steps(view, view.jobs, speeds)
    return {
        job.key: (_SOON_SECONDS + rest / speed) ** -0.5
        for job, rest, speed in zip(view.jobs, steps, speeds, strict=True)
    }


def _best_speed(view: View, job: Candidate) -> float:
    """Return the steps a second with its best number of workers; 1 where that is not known."""
    speed_model = view.speed_models.get(job.key)
    if speed_model is None:
        return 1.0
    most = min(job.max_workers, max(job.min_workers, view.gpus // max(1, job.gpus_per_worker)))
    return 1 / min(map(speed_model.step_seconds, range(job.min_workers, most + 1)))
