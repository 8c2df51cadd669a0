"""Weighted max-min fairness of what is lent; base GPUs by priority."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import ClassVar, Final

from espalier_operator.policies.view import ONE, Candidate, Decision, Elasticity, View, base_share


@dataclass(frozen=True, slots=True)
class FairPolicy:
    """Extra GPUs are shared so that the smallest share is as large as can be; base GPUs go by priority.

    Of the same priority, those get base GPUs first whose queue or namespace held the fewest lately, then the oldest.
    All that is more than its base workers is spare to a job, and so it is shared by weight (`order`).
    """

    elasticity: ClassVar[Elasticity] = Elasticity.FIXED

    @property
    def name(self) -> str:
        """`fair`."""
        return "fair"

    @property
    def queue_order(self) -> str:
        """Return the order of admission in words."""
        return "by priority, recent use and age"

    def decide(self, view: View) -> Decision:
        """Return a share for each job, by (−priority less what waiting adds, recent use, submission time, key)."""
        jobs = sorted(view.jobs, key=served_before)
        return Decision(shares=tuple(base_share(job, weight=weight_of(job.priority)) for job in jobs))


MOST_WEIGHT: Final = 10
"""No job has more than this many times the share of a job of priority 0, nor less than one over it."""


@lru_cache
def weight_of(priority: int) -> Fraction:
    """Return 1 at priority 0, 1 more with each step up, one over that with each step down: 1 + p, 1 / (1 − p).

    At most `MOST_WEIGHT`, at least one over it: priorities say who comes first, and anybody may choose 10⁹.
    """
    if priority == 0:
        return ONE
    weight = min(1 + abs(priority), MOST_WEIGHT)
    return Fraction(weight) if priority > 0 else Fraction(1, weight)


def served_before(job: Candidate) -> tuple[float, float, float, str]:
    """Return the place of a job in the order of admission: the smallest first."""
    return (-job.priority - job.aged, job.recent_use, job.submitted_at, job.key)
