"""The outcome of a simulation."""

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
"""Tolerance of ρ: both times are sums of floats, some of them seconds since 1970."""


class EndedJob(Protocol):
    """A job of a trace, complete."""

    submitted_at: float
    completed_at: float | None
    service: float
    """GPU-seconds held; its part of shared GPUs."""
    restarts: int
    """Number of restarts; -1: it never started."""
    evictions: int
    """Number of times that it lost all its workers before completion."""
    preemptions: int
    """Number of times that it lost workers, some or all, before completion."""
    held: list[HeldSpan]

    def isolated_seconds(self, contention: float, gpus: int) -> float:
        """Return its duration with 1 / `contention` of the cluster's GPUs, as its author asked for it.

        It counts from submission and includes the start on an idle cluster. Raise `TraceError` if it was not measured.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Fairness:
    """Finish-time fairness: ρ = JCT ÷ JCT with 1/N of the GPUs (Themis: Mahajan et al., NSDI 2020, 3; Gavel: 4.2).

    N is the mean number of unfinished jobs while the job is one of them, and the job has the workers that its author
    asked for, in turns if 1/N of the GPUs is fewer. A job with ρ > 1 would have been faster with 1/N alone. Both times
    include one start (the rest of the round, the start of workers): a job alone on the cluster has ρ = 1.
    """

    mean: float
    worst: float
    unfair: float
    """Part of the jobs with ρ > 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationOutcome:
    """Figures of one run. Seconds of simulated time; a JCT is the time from submission to completion."""

    jobs: int
    average_jct: float
    median_jct: float
    p99_jct: float
    """The JCT that 99 % of the jobs do not exceed (nearest rank)."""
    makespan: float
    """Time from the first submission to the last completion."""
    utilisation: float
    """Held GPU-seconds, relative to those of all GPUs in the makespan."""
    restarts: int
    """Number of changes of workers of started jobs."""
    evictions: int
    """Number of times that a job lost all its workers before completion."""
    preemptions: int
    """Number of times that a job lost workers, some or all, before completion."""
    fairness: Fairness | None
    """None if the trace does not have the durations of jobs alone."""
    accuracy_gained: float | None
    """Mean accuracy gained by growing into lent GPUs, over the jobs that can; None: none can."""
    lent_gpu_hours: float | None
    """Mean hours of training with lent GPUs, over the jobs that can grow; None: none can."""


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
    """Return the fairness of the completion times of `jobs`, all complete, against equal parts of the GPUs.

    None if one of them was not measured as its author asked for it.
    """
    changes = Counter[float]()
    for job in jobs:
        changes[job.submitted_at] += 1
        changes[job.completed_at or job.submitted_at] -= 1
    moments = sorted(changes)
    counts = accumulate(changes[moment] for moment in moments)
    spans = (count * (end - start) for count, (start, end) in zip(counts, pairwise(moments), strict=False))
    unfinished = dict(zip(moments, accumulate(spans, initial=0.0), strict=True))
    """For each moment: the sum over jobs of the seconds for which they were unfinished until then."""
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
