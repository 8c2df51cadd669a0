"""Spare GPUs where growth is worth most: gain in final accuracy per GPU-second of a loan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from espalier_operator.policies.fair import served_before, weight_of
from espalier_operator.policies.view import Candidate, Decision, Elasticity, ExpectedGrowth, Share, View

AGAIN_SECONDS: Final = 60.0
"""Interval of comparisons while jobs wait for a loan: the gain of growth falls with the remaining time."""
_HOLDER: Final = 1.25
"""Factor on the rate of a job that has a loan: forecasts vary, and the cost of an interrupted loan is lost."""
_FASTER: Final = 1.05
"""Minimum speed-up by extra workers for which a job gets spare ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowthPolicy:
    """Spare GPUs go to the job that gains the most final accuracy per GPU-second, times its weight by priority.

    One extra worker is enough to decide where to grow. So a job is lent one until it has nothing more to gain, the job
    with the highest rate first; another job takes it over once its own rate is higher by a quarter. GPUs that no job
    needs for growth go, by weight, to jobs that extra workers speed up; a job that has grown and gains no speed gives
    its loan back. Base GPUs go as under `fair`.
    """

    name: ClassVar[str] = "growth"
    elasticity: ClassVar[Elasticity] = Elasticity.FIXED
    queue_order: ClassVar[str] = "by priority, recent use and age"

    predicts: bool = True
    """Jobs are compared by their expected gain. Otherwise the oldest goes first, and each keeps its loan until it can
    decide nothing more; the difference is the value of prediction."""
    untold: float = 0.01
    """Gain (final accuracy) assumed for a job without a forecast by a loan of `untold_seconds`: it is lent a GPU once,
    and its agent then makes a forecast."""
    untold_seconds: float = 300.0

    def __post_init__(self) -> None:
        for name in ("untold", "untold_seconds"):
            if not 0 <= (value := getattr(self, name)) < float("inf"):
                raise ValueError(f"{name}: {value:g} is invalid; must be finite and at least 0")

    def decide(self, view: View) -> Decision:
        """Return the base workers of each job, and one extra worker for the jobs that gain most by it."""
        order = sorted(view.jobs, key=served_before)
        rates = {job.key: self._rate(job, view) for job in order if job.workers and job.max_workers > job.min_workers}
        growing = sorted((job for job in order if rates.get(job.key, 0.0) > 0), key=lambda job: -rates[job.key])
        left = _left(view, order)
        lent = set[str]()
        for job in growing:
            if job.gpus_per_worker <= left:
                left -= job.gpus_per_worker
                lent.add(job.key)
        first = [job for job in growing if job.key in lent]
        rest = [job for job in order if job.key not in lent]
        return Decision(
            shares=tuple(_share(job, view, job.key in lent, rates.get(job.key, 0.0) > 0) for job in (*first, *rest)),
            until=view.now + AGAIN_SECONDS if len(first) < len(growing) else None,
            follows_progress=True,
        )

    def _rate(self, job: Candidate, view: View) -> float:
        expected_growth = view.expected_growths.get(job.key)
        if expected_growth is None:
            expected_growth = ExpectedGrowth(gains=(self.untold,), seconds=(self.untold_seconds,))
        held = _HOLDER if job.workers > job.min_workers else 1.0
        if not self.predicts:
            return held if expected_growth.gains else 0.0
        return held * expected_growth.rate * float(weight_of(job.priority)) / job.gpus_per_worker


def _left(view: View, order: Sequence[Candidate]) -> int:
    """Return the GPUs that base workers leave: waiting jobs get free GPUs before anything is lent.

    A waiting job that does not fit leaves them to others.
    """
    # The planner keeps running jobs, as this policy does not preempt. In rounds, a waiting job gets its GPUs before a
    # later one that runs, so GPUs of later jobs cannot be lent.
    served = sorted(order, key=lambda job: not job.workers) if view.continuous else order
    left = view.gpus
    for job in served:
        needs = job.min_workers * job.gpus_per_worker
        if job.workers or needs <= left:
            left -= needs
    return left


def _share(job: Candidate, view: View, is_lent: bool, grows: bool) -> Share:
    """Return the base workers, one more if lent for growth, and spare ones if they speed the job up or it may grow."""
    workers = job.min_workers + is_lent
    speed_model, most = view.speed_models.get(job.key), job.max_workers
    if speed_model is None or speed_model.step_seconds(job.min_workers) < _FASTER * speed_model.step_seconds(most):
        most = min(most, job.min_workers + grows)
    return Share(job=job.key, workers=workers, spare=max(0, most - workers), weight=weight_of(job.priority))
