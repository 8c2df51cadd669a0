"""Weighted max-min fairness of what is lent; base GPUs by priority."""

from __future__ import annotations

from dataclasses import dataclass

from espalier_operator.facts import JobFacts
from espalier_operator.policies import Rank


@dataclass(frozen=True, slots=True)
class FairPolicy:
    """Extra GPUs are shared so that the smallest share is as large as can be; base GPUs go by priority.

    Of the same priority, those get base GPUs first whose queue or namespace held the fewest lately, then the oldest.

    Progressive filling (Bertsekas and Gallager, Data Networks, 2nd edition, 6.5.2) by whole workers: each worker more
    goes to the job with the smallest share; of equal shares to the higher priority, then to the older job. So nobody
    has two while somebody who wants one has none. What is lent moves to another job only where the holder is left
    with a larger share than the taker had, or with as large a one and a lower priority: by that strict order no move
    is ever answered by its reverse, and among equals a holder keeps what it has.
    """

    @property
    def name(self) -> str:
        """`fair`."""
        return "fair"

    @property
    def queue_order(self) -> str:
        """Return the order of admission in words."""
        return "by priority, recent use and age"

    def admission_rank(self, job: JobFacts, now: float) -> Rank:
        """Return (−priority less what waiting adds, recent use, submission time, key)."""
        return (-job.terms.priority - job.aged, job.recent_use, job.submitted_at, job.key)

    def lending_rank(self, job: JobFacts, extra: int, now: float) -> Rank:
        """Return (share, −priority, submission time, key)."""
        return (share(job, extra), -job.terms.priority, job.submitted_at, job.key)

    def may_take(self, taker: JobFacts, has: int, holder: JobFacts, keeps: int, now: float) -> bool:
        """Return whether the holder is left better off than the taker was; of equals the higher priority counts."""
        return (share(taker, has), -taker.terms.priority) < (share(holder, keeps), -holder.terms.priority)


def share(job: JobFacts, extra: int) -> float:
    """Return the GPUs of `extra` extra workers over the job's weight.

    The weight is 1 at priority 0, 1 more with each step up, and one over that with each step down: 1 + p, 1 / (1 − p).
    At most one division, of whole numbers, is rounded: equal shares are equal floats.
    """
    gpus, priority = extra * job.terms.gpus_per_worker, job.terms.priority
    return gpus / (1 + priority) if priority >= 0 else float(gpus * (1 - priority))
