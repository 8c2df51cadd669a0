"""Remaining time by marginal gain: Optimus (Peng et al., EuroSys 2018, 4.1)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from espalier_operator.policies.marginal import hand_out, share_of
from espalier_operator.policies.view import Candidate, Decision, Elasticity, Outlook, View


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
            view.outlooks,
            view.gpus,
            lambda job, count: _gain(view.outlooks[job.key], count),
        )
        order = sorted(view.jobs, key=lambda job: (workers[job.key] * job.gpus_per_worker, _need(job)[1]))
        return Decision(
            shares=tuple(share_of(job, workers[job.key], known=job.key in view.outlooks) for job in order),
            preempts=True,
            follows_progress=True,
        )


def _need(job: Candidate) -> tuple[int, float]:
    rest = job.rest
    return job.min_workers * job.gpus_per_worker, math.inf if rest is None or rest > job.service else rest


def _gain(outlook: Outlook, workers: int) -> float:
    """Return the seconds by which a worker more shortens the rest of the job."""
    return (outlook.step_seconds(workers) - outlook.step_seconds(workers + 1)) * outlook.remaining_steps
