"""Weighted max-min fairness of lent GPUs; base GPUs by priority."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import ClassVar, Final

from espalier_operator.policies.view import ONE, Candidate, Decision, Elasticity, View, base_share


@dataclass(frozen=True, slots=True)
class FairPolicy:
    """Extra GPUs are divided so that the smallest share is as large as possible; base GPUs go by priority.

    Within a priority, jobs whose queue or namespace held the fewest GPUs recently come first, then the oldest. All
    workers of a job beyond its base workers are spare, and so divided by weight (`decisions`).
    """

    name: ClassVar[str] = "fair"
    elasticity: ClassVar[Elasticity] = Elasticity.FIXED
    queue_order: ClassVar[str] = "by priority, recent use and age"

    def decide(self, view: View) -> Decision:
        """Return a share for each job, by (−priority less steps gained by waiting, recent use, submission, key)."""
        jobs = sorted(view.jobs, key=served_before)
        return Decision(shares=tuple(base_share(job, weight=weight_of(job.priority)) for job in jobs))


MOST_WEIGHT: Final = 10
"""Maximum ratio of a job's share to the share of a job of priority 0, either way."""


@lru_cache
def weight_of(priority: int) -> Fraction:
    """Return the weight of a priority p: 1 + p for p ≥ 0, and 1 / (1 − p) for p < 0.

    At most `MOST_WEIGHT`, at least its reciprocal: priorities mainly order jobs, and anybody may choose 10⁹.
    """
    if priority == 0:
        return ONE
    weight = min(1 + abs(priority), MOST_WEIGHT)
    return Fraction(weight) if priority > 0 else Fraction(1, weight)


def served_before(job: Candidate) -> tuple[float, float, float, str]:
    """Return the sort key of a job in the order of admission, smallest first."""
    return (-job.priority - job.aged, job.recent_use, job.submitted_at, job.key)
