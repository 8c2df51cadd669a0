"""Least attained service, discretised, and the Gittins index: Tiresias (Gu et al., NSDI 2019, 3.2)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import ClassVar, Final

from espalier_operator.policies.view import Candidate, Decision, Elasticity, View, base_share

_QUEUES: Final = "queues"
"""Key of the jobs of each queue, in order."""
_WAITS: Final = "waits"
"""Key of the time since which each job that has run waits."""
_MARKS: Final = "marks"
"""Key of the service of each job at its last promotion."""
_ENDED: Final = "ended"
"""Key of the GPU-seconds of ended jobs, rising."""
_COUNTED: Final = "counted"
"""Key of the ended jobs that the view still has."""
_MOST_SAMPLES: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class LasPolicy:
    """Jobs with little attained service go first: short jobs end soon, without being known as short.

    A job starts in the first queue and moves to the next each time its service, in GPU-seconds, reaches one of the
    thresholds. Within a queue the order is that of arrival in it (2D-LAS of the paper). It preempts: a job of a later
    queue yields to one of an earlier queue, if its terms allow it.
    """

    elasticity: ClassVar[Elasticity] = Elasticity.FIXED
    queue_order: ClassVar[str] = "by attained service and arrival"

    thresholds: tuple[float, ...] = (3250.0, 7200.0, 18000.0)
    """Thresholds in GPU-seconds, rising; the default is that of the released simulator."""
    promote: float = 0.0
    """A job that has waited this many times as long as it has run returns to the first queue as a new job (PROMOTEKNOB
    of the paper); 0: never."""
    lend: bool = True
    """Spare GPUs are lent, in equal parts. The paper's jobs have a fixed size."""
    name: str = "las"

    def __post_init__(self) -> None:
        rising = all(low < high for low, high in zip((0.0, *self.thresholds), self.thresholds, strict=False))
        if not (self.thresholds and rising):
            raise ValueError(f"thresholds: {self.thresholds} are invalid; must be GPU-seconds above 0, rising")
        if not self.promote >= 0:
            raise ValueError(f"promote: {self.promote:g} is invalid; must be at least 0")

    def decide(self, view: View) -> Decision:
        """Return a share of the base workers for each job, by queue."""
        jobs, now = {job.key: job for job in view.jobs}, view.now
        queues = [[key for key in queue if key in jobs] for queue in view.memory.get(_QUEUES, ())]
        queues += [[] for _ in range(len(self.thresholds) + 1 - len(queues))]
        place = {key: index for index, queue in enumerate(queues) for key in queue}
        waits = {key: since for key, since in view.memory.get(_WAITS, {}).items() if key in jobs}
        marks = {key: mark for key, mark in view.memory.get(_MARKS, {}).items() if key in jobs}
        until: list[float] = []
        for key, job in jobs.items():
            before = place.get(key)
            mark = marks.get(key, 0.0)
            after = max(before or 0, bisect_right(self.thresholds, job.service - mark))
            if job.workers:
                waits.pop(key, None)
            elif self.promote and after and job.service > mark:
                executed = (job.service - mark) / (job.min_workers * job.gpus_per_worker)
                promoted_at = waits.setdefault(key, now) + self.promote * executed
                if now >= promoted_at:
                    after, marks[key] = 0, job.service
                    del waits[key]
                else:
                    until.append(promoted_at)
            if after != before:
                if before is not None:
                    queues[before].remove(key)
                queues[after].append(key)
            if after < len(self.thresholds):
                rest = self.thresholds[after] - (job.service - marks.get(key, 0.0))
                until.append(now + rest / (max(job.workers, job.min_workers) * job.gpus_per_worker))
        return Decision(
            shares=tuple(base_share(jobs[key], lend=self.lend) for key in chain.from_iterable(queues)),
            preempts=True,
            until=min(until, default=None),
            memory={_QUEUES: queues, _WAITS: waits, _MARKS: marks},
        )


def tiresias() -> LasPolicy:
    """Return the policy that Pollux was compared with (Qiao et al., OSDI 2021): two queues, jobs of fixed size."""
    return LasPolicy(thresholds=(3600.0 * 16,), lend=False, name="tiresias")


@dataclass(frozen=True, slots=True, kw_only=True)
class GittinsPolicy:
    """The job that is the likeliest to end soon, by the total service of ended jobs, goes first.

    The service of a job counts in whole quanta, so that two jobs do not take turns at every moment. Among equals, and
    while no job has ended or all have taken less, jobs with the least service go first, then the oldest.

    The index of a job that reports the part of its work done is 1 / its rest: it needs no samples of others.
    """

    elasticity: ClassVar[Elasticity] = Elasticity.FIXED
    queue_order: ClassVar[str] = "by Gittins index, attained service and age"

    quantum: float = 14400.0
    """Quantum of service, in GPU-seconds."""
    lend: bool = True
    """Spare GPUs are lent, in equal parts. The paper's jobs have a fixed size."""
    name: str = "gittins"

    def __post_init__(self) -> None:
        if not self.quantum > 0:
            raise ValueError(f"quantum: {self.quantum:g} is invalid; must be above 0")

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
                index = 1 / max(1.0, job.rest)  # its end is certain, so the supremum is there
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

    S has the empirical distribution of the samples, which are rising. 0 where none is larger than a.
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
