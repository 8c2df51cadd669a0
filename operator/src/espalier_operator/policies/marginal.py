"""Workers by marginal gain: Optimus (Peng et al., EuroSys 2018, 4.1), and `soonest`, for jobs that end soon.

Base workers are handed out in an order, then each further worker goes to the job with the largest gain. `soonest` is a
rule of this project, found while learning allocation.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

from espalier_operator.policies.view import Candidate, Decision, Elasticity, Share, SpeedModel, View, remaining_steps

Worth = Callable[[Candidate, int], float]
"""Value of one more worker to a job, as a function of the job and its number of workers."""
_SOON_SECONDS: Final = 60.0
"""Jobs that end sooner than this count about the same."""


def hand_out(order: Iterable[Candidate], known: Iterable[str], gpus: int, worth: Worth) -> dict[str, int]:
    """Return the workers of each job. Jobs get their base workers in `order`; a job that needs too many waits.

    Each further worker goes to the job among the `known` with the largest `worth` above 0, the first in `order` among
    equals. A job whose next worker does not fit gets no more.
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
    """Return a share of `workers`, with spare ones for a job that is not `known`."""
    return Share(job=job.key, workers=workers, spare=0 if known or not workers else job.max_workers - workers)


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimusPolicy:
    """Each job gets its base workers; each further worker goes where it shortens the remaining time the most.

    The gain of a worker is (T(n) − T(n + 1)) × Q, with T(n) the seconds of a step with n workers and Q the remaining
    steps. Jobs for which neither is known get their base workers, and spare GPUs in equal parts. Where GPUs do not
    suffice for all base workers, jobs that need few go first; among equals those that report an early end, the
    soonest first, then the older.
    """

    name: str = "optimus"
    elasticity: ClassVar[Elasticity] = Elasticity.WORKERS
    queue_order: ClassVar[str] = "by GPUs and age"

    def decide(self, view: View) -> Decision:
        """Return shares that sum to at most all GPUs, the smallest first."""
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
    """Return the seconds by which one more worker shortens the rest of the job."""
    return (speed_model.step_seconds(workers) - speed_model.step_seconds(workers + 1)) * speed_model.remaining_steps


@dataclass(frozen=True, slots=True, kw_only=True)
class SoonestPolicy:
    """Workers go where the logarithm of the speedup per GPU is largest, with more weight for jobs that end soon.

    One more worker is worth log(T(n) / T(n + 1)) / GPUs × (60 s + rest) ** -½, with T(n) the seconds of a step with n
    workers, and the rest of the job with its best number of workers. Before that, all jobs get their base workers;
    where these do not fit, jobs with the largest 1 / GPUs × (60 s + rest) ** -½ come first. A job for which neither is
    known counts as the average of the others, and gets spare GPUs in equal parts.
    """

    name: str = "soonest"
    elasticity: ClassVar[Elasticity] = Elasticity.WORKERS
    queue_order: ClassVar[str] = "by GPUs and by how soon they end"

    def decide(self, view: View) -> Decision:
        """Return shares that sum to at most all GPUs, in the order in which jobs start."""
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
    """Return the weight of each job: (60 s + rest) ** -½, with the rest at its best number of workers."""
    speeds = [_best_speed(view, job) for job in view.jobs]
    steps = remaining_steps(view, view.jobs, speeds)
    return {
        job.key: (_SOON_SECONDS + rest / speed) ** -0.5
        for job, rest, speed in zip(view.jobs, steps, speeds, strict=True)
    }


def _best_speed(view: View, job: Candidate) -> float:
    """Return the steps per second with the best number of workers; 1 where unknown."""
    speed_model = view.speed_models.get(job.key)
    if speed_model is None:
        return 1.0
    most = min(job.max_workers, max(job.min_workers, view.gpus // max(1, job.gpus_per_worker)))
    return 1 / min(map(speed_model.step_seconds, range(job.min_workers, most + 1)))
