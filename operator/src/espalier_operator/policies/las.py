"""Least attained service, discretised: Tiresias (Gu et al., NSDI 2019, 3.2)."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar, Final

from espalier_operator.policies.view import Decision, Elasticity, View, base_share

_QUEUES: Final = "queues"
"""The keys of jobs by queue, in order."""
_WAITS: Final = "waits"
"""Since when a job waits that has run."""
_MARKS: Final = "marks"
"""The service of a job when it was last promoted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LasPolicy:
    """Jobs that have been served little go first: short ones end soon, and nobody must say which are short.

    A job starts in the first queue and moves to the next each time its service, in GPU-seconds, reaches one of the
    thresholds. Within a queue the order is that of arrival in it (2D-LAS of the paper). It preempts: a job of a later
    queue yields to one of an earlier queue, if its terms allow it.
    """

    elasticity: ClassVar[Elasticity] = Elasticity.FIXED

    thresholds: tuple[float, ...] = (3250.0, 7200.0, 18000.0)
    """GPU-seconds, rising; the default is that of the released simulator."""
    promote: float = 0.0
    """A job that waits for this many times as long as it has run returns to the first queue as a new job (PROMOTEKNOB
    of the paper); 0: never."""
    lend: bool = True
    """Spare GPUs are lent, in equal parts. The paper's jobs have a fixed size."""
    name: str = "las"

    def __post_init__(self) -> None:
        rising = all(low < high for low, high in zip((0.0, *self.thresholds), self.thresholds, strict=False))
        if not (self.thresholds and rising):
            raise ValueError(f"thresholds: {self.thresholds} are to be GPU-seconds above 0, rising")
        if not self.promote >= 0:
            raise ValueError(f"promote: {self.promote:g} is not 0 or more")

    @property
    def queue_order(self) -> str:
        """Return the order of admission in words."""
        return "by attained service and arrival"

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
    """Return the settings with which Pollux was compared (Qiao et al., OSDI 2021): two queues, jobs of fixed size."""
    return LasPolicy(thresholds=(3600.0 * 16,), lend=False, name="tiresias")
