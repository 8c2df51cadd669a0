"""First in, first out."""

from __future__ import annotations

from dataclasses import dataclass

from espalier_operator.policies.view import Decision, View, base_share


@dataclass(frozen=True, slots=True)
class FifoPolicy:
    """Base GPUs go to the oldest job; lent GPUs are shared equally, and to the older job first."""

    @property
    def name(self) -> str:
        """`fifo`."""
        return "fifo"

    @property
    def queue_order(self) -> str:
        """Return the order of admission in words."""
        return "by age"

    def decide(self, view: View) -> Decision:
        """Return a share for each job, by (submission time, key)."""
        oldest_first = sorted(view.jobs, key=lambda job: (job.submitted_at, job.key))
        return Decision(shares=tuple(map(base_share, oldest_first)))
