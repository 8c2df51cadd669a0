"""The Gittins index of what ended jobs took: 2D-Gittins of Tiresias (Gu et al., NSDI 2019, 3.2)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar, Final

from espalier_operator.policies.view import Candidate, Decision, Elasticity, View, base_share

_ENDED: Final = "ended"
"""GPU-seconds that ended jobs took, rising."""
_COUNTED: Final = "counted"
"""The keys of those of them that the view still knows."""
_MOST_SAMPLES: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class GittinsPolicy:
    """The job goes first that is the likeliest to end soon, by the service that jobs before it took in all.

    The service of a job counts in whole quanta, so that two jobs do not take turns at every moment. Of equals, and
    while no job has ended or all have taken less, those go first that have been served the least, then the oldest.

    The index of a job that says what part of its work it has done is 1 / its rest: it needs no samples of others.
    """

    elasticity: ClassVar[Elasticity] = Elasticity.FIXED

    quantum: float = 14400.0
    """GPU-seconds."""
    lend: bool = True
    """Spare GPUs are lent, in equal parts. The paper's jobs have a fixed size."""
    name: str = "gittins"

    def __post_init__(self) -> None:
        if not self.quantum > 0:
            raise ValueError(f"quantum: {self.quantum:g} is to be above 0")

    @property
    def queue_order(self) -> str:
        """Return the order of admission in words."""
        return "by Gittins index, attained service and age"

    def decide(self, view: View) -> Decision:
        """Return a share of the base workers for each job, the highest index first."""
        counted = set(view.memory.get(_COUNTED, ()))
        fresh = (service for key, service in view.ended.items() if key not in counted and service > 0)
        known = sorted([*view.memory.get(_ENDED, ()), *fresh])
        if len(known) > _MOST_SAMPLES:
            known = known[:: -(-len(known) // _MOST_SAMPLES)]
        indices: dict[float, float] = {}
        ranked: list[tuple[float, float, float, str, Candidate]] = []
        until: list[float] = []
        for job in view.jobs:
            attained = job.service // self.quantum * self.quantum
            if job.rest is not None:
                index = 1 / max(1.0, job.rest)  # its end is sure, so the supremum is there
            else:
                if attained not in indices:
                    indices[attained] = gittins_index(known, attained)
                index = indices[attained]
            ranked.append((-index, attained, job.submitted_at, job.key, job))
            rest = attained + self.quantum - job.service
            until.append(view.now + rest / (max(job.workers, job.min_workers) * job.gpus_per_worker))
        return Decision(
            shares=tuple(base_share(job, lend=self.lend) for *_, job in sorted(ranked, key=lambda each: each[:4])),
            preempts=True,
            follows_progress=any(job.done is not None for job in view.jobs),
            until=min(until, default=None),
            memory={_ENDED: known, _COUNTED: sorted(view.ended)},
        )


def gittins_index(rising: Sequence[float], attained: float) -> float:
    """Return G(a) = sup over Δ of P(S − a ≤ Δ | S > a) / E[min(S − a, Δ) | S > a], for `attained` a, in 1/GPU-seconds.

    S has the empirical distribution of the samples, which rise. 0 where none is larger than a.
    """
    rest = [sample - attained for sample in rising[bisect_right(rising, attained) :]]
    sums = accumulate(rest)
    count = len(rest)
    # The supremum is at a sample: between two of them P stays and E rises.
    return max(
        (
            ended / (total + (count - ended) * delta)
            for ended, (delta, total) in enumerate(zip(rest, sums, strict=True), 1)
        ),
        default=0.0,
    )
