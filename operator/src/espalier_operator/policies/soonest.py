"""Speedup for jobs that end soon: a rule of this project, found while allocation was learned."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

from espalier_operator.policies.marginal import hand_out, share_of
from espalier_operator.policies.remaining import remaining_steps
from espalier_operator.policies.view import Candidate, Decision, Elasticity, Outlook, View

_SOON_SECONDS: Final = 60.0
"""Jobs that end sooner than that count about the same."""


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
            return weights[job.key] / max(1, job.gpus_per_worker) * _log_gain(view.outlooks[job.key], workers)

        workers = hand_out(order, view.outlooks, view.gpus, worth)
        return Decision(
            shares=tuple(share_of(job, workers[job.key], known=job.key in view.outlooks) for job in order),
            preempts=True,
            follows_progress=True,
        )


def _base_gpus(job: Candidate) -> int:
    return max(1, job.min_workers * job.gpus_per_worker)


def _log_gain(outlook: Outlook, workers: int) -> float:
    now, then = outlook.step_seconds(workers), outlook.step_seconds(workers + 1)
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
    outlook = view.outlooks.get(job.key)
    if outlook is None:
        return 1.0
    most = min(job.max_workers, max(job.min_workers, view.gpus // max(1, job.gpus_per_worker)))
    return 1 / min(map(outlook.step_seconds, range(job.min_workers, most + 1)))
