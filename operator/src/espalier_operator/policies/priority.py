"""Priority, then submission time; the default."""

from __future__ import annotations

from dataclasses import dataclass

from espalier_operator.facts import JobFacts
from espalier_operator.policies import Rank


@dataclass(frozen=True, slots=True)
class PriorityPolicy:
    """Base and extra GPUs go by priority, then submission time; extra ones move to a strictly higher priority only.

    Among equals a holder keeps what it has: moving GPUs between equals costs two growths and gains nobody anything.
    """

    @property
    def name(self) -> str:
        """`priority`."""
        return "priority"

    def admission_rank(self, job: JobFacts, now: float) -> Rank:
        """Return (−priority, submission time, key)."""
        return (-job.terms.priority, job.submitted_at, job.key)

    def lending_rank(self, job: JobFacts, extra: int, now: float) -> Rank:
        """Return the same as for admission, whatever it holds: the first is filled before the second gets any."""
        return self.admission_rank(job, now)

    def may_take(self, taker: JobFacts, holder: JobFacts, now: float) -> bool:
        """Return whether the taker's priority is strictly higher."""
        return taker.terms.priority > holder.terms.priority
