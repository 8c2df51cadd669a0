"""What came out of a simulation."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final, Protocol

from espalier_lab.simulator.errors import TraceError
from espalier_lab.simulator.growth import accuracy_gained, lent_gpu_hours
from espalier_lab.simulator.holdings import HeldSpan

_ROUNDING: Final = 1e-6
"""Of ρ: both times are sums of floating-point numbers, some of seconds since 1970."""


class EndedJob(Protocol):
    """A job of a trace, complete."""

    submitted_at: float
    completed_at: float | None
    service: float
    """GPU-seconds that it has held; of GPUs that it shared, its part."""
    restarts: int
    """-1: it never started."""
    evictions: int
    """How often it lost all its workers before it was complete."""
    preemptions: int
    """How often it lost workers, some or all, before it was complete."""
    held: list[HeldSpan]

    def isolated_seconds(self, contention: float, gpus: int) -> float:
        """Return how long it takes with 1 / `contention` of the cluster's GPUs to itself, as its author asked for it.

        From its submission on: what a start costs on the idle cluster, it costs here too. Raises `TraceError` where
        that was not measured.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Fairness:
    """Finish-time fairness: ρ = JCT ÷ that with 1/N of the GPUs (Themis: Mahajan et al., NSDI 2020, 3; Gavel: 4.2).

    N is the number of unfinished jobs, on average while the job is one of them, and the job has the workers that its
    author asked for, in turns where 1/N of the GPUs is fewer. A job with ρ > 1 would have been faster with 1/N alone.
    Both times hold one start (the rest of the round, the start of workers): a job alone on the cluster has ρ = 1.
    """

    mean: float
    worst: float
    unfair: float
    """The part of the jobs with ρ > 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationOutcome:
    """Figures of one run. Seconds of simulated time; a JCT is the time from submission to completion."""

    jobs: int
    average_jct: float
    median_jct: float
    p99_jct: float
    """The JCT that 99 % of the jobs do not exceed (nearest rank)."""
    makespan: float
    """From the first submission to the last completion."""
    utilisation: float
    """GPU-seconds held, over those of all GPUs in the makespan."""
    restarts: int
    """How often the workers of a job changed after it had started."""
    evictions: int
    """How often a job lost all its workers before it was complete."""
    preemptions: int
    """How often a job lost workers, some or all, before it was complete."""
    fairness: Fairness | None
    """None where the trace does not tell how long a job takes alone."""
    accuracy_gained: float | None
    """By growing into lent GPUs, on average over the jobs that can; None: none can."""
    lent_gpu_hours: float | None
    """That jobs trained with to grow, on average over the jobs that can; None: none can."""


def outcome_of(jobs: Sequence[EndedJob], gpus: int) -> SimulationOutcome:
    """Return the figures of `jobs`, all complete, that ran on this number of GPUs."""
    jcts = sorted((job.completed_at or 0.0) - job.submitted_at for job in jobs)
    makespan = max(job.completed_at or 0.0 for job in jobs) - min(job.submitted_at for job in jobs)
    return SimulationOutcome(
        jobs=len(jobs),
        average_jct=math.fsum(jcts) / len(jcts),
        median_jct=statistics.median(jcts),
        p99_jct=jcts[math.ceil(0.99 * len(jcts)) - 1],
        makespan=makespan,
        utilisation=math.fsum(job.service for job in jobs) / (gpus * makespan) if makespan else 0.0,
        restarts=sum(max(0, job.restarts) for job in jobs),
        evictions=sum(job.evictions for job in jobs),
        preemptions=sum(job.preemptions for job in jobs),
        fairness=fairness_of(jobs, gpus),
        accuracy_gained=accuracy_gained(jobs),
        lent_gpu_hours=lent_gpu_hours(jobs),
    )


def fairness_of(jobs: Sequence[EndedJob], gpus: int) -> Fairness | None:
    """Return how the completion times of `jobs`, all complete, compare with those by equal parts of the GPUs.

    None where one of them was not measured as its author asked for it.
    """
    changes = Counter[float]()
    for job in jobs:
        changes[job.submitted_at] += 1
        changes[job.completed_at or job.submitted_at] -= 1
    moments = sorted(changes)
    counts = accumulate(changes[moment] for moment in moments)
    spans = (count * (end - start) for count, (start, end) in zip(counts, pairwise(moments), strict=False))
    unfinished = dict(zip(moments, accumulate(spans, initial=0.0), strict=True))
    """By moment: the sum, over jobs, of the seconds that they were unfinished until then."""
    ratios = []
    for job in jobs:
        completed = job.completed_at or job.submitted_at
        jct = completed - job.submitted_at
        contention = (unfinished[completed] - unfinished[job.submitted_at]) / jct if jct else 1.0
        try:
            ratios.append(jct / job.isolated_seconds(contention, gpus))
        except TraceError:
            return None
    return Fairness(
        mean=math.fsum(ratios) / len(ratios),
        worst=max(ratios),
        unfair=sum(ratio > 1 + _ROUNDING for ratio in ratios) / len(ratios),
    )
