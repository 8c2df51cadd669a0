"""First in, first out."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from espalier_operator.policies.fifo_by_type import types_of_jobs
from espalier_operator.policies.leases import leased
from espalier_operator.policies.view import Decision, Elasticity, View, base_share


@dataclass(frozen=True, slots=True, kw_only=True)
class FifoPolicy:
    """Base GPUs go to the oldest job; lent GPUs are shared equally, and to the older job first.

    In a simulation where GPUs differ in type, the oldest job gets a type as in Gavel's (`fifo_by_type`), and keeps it.
    """

    elasticity: ClassVar[Elasticity] = Elasticity.FIXED

    seed: int = 0
    """Of what is random in the choice of a type."""

    @property
    def name(self) -> str:
        """`fifo`."""
        return "fifo"

    @property
    def queue_order(self) -> str:
        """Return the order of admission in words."""
        return "by age"

    def draws(self, *, typed: bool, continuous: bool) -> bool:
        """Return whether it uses its seed in such views: by rounds, among types of GPU."""
        return typed and not continuous

    def decide(self, view: View) -> Decision:
        """Return a share for each job, by (submission time, key)."""
        if view.gpu_types and not view.continuous:
            return leased(view, partial(types_of_jobs, view, self.seed), list(view.gpu_types), fills=False)
        return oldest_first(view)


def oldest_first(view: View) -> Decision:
    """Return a share of the base workers for each job, by (submission time, key)."""
    return Decision(shares=tuple(map(base_share, sorted(view.jobs, key=lambda job: (job.submitted_at, job.key)))))
