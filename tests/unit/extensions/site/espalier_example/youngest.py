"""A scheduling policy: who came last goes first."""

from __future__ import annotations

from espalier_operator.facts import JobFacts
from espalier_operator.policies import Rank


class YoungestFirst:
    """Base and extra GPUs go to the youngest job; what is lent never moves."""

    name = "youngest-first"
    queue_order = "the youngest first"

    def admission_rank(self, job: JobFacts, now: float) -> Rank:
        """Return (age, key)."""
        return (now - job.submitted_at, job.key)

    def lending_rank(self, job: JobFacts, extra: int, now: float) -> Rank:
        """Return (age, key): the youngest job gets all that it can use."""
        return (now - job.submitted_at, job.key)

    def may_take(self, taker: JobFacts, has: int, holder: JobFacts, keeps: int, now: float) -> bool:
        """Return False."""
        return False
