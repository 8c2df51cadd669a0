"""What came out of a simulation."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from espalier_operator.simulation.holdings import Span


class Ended(Protocol):
    """A job of a trace, complete."""

    submitted_at: float
    completed_at: float | None
    service: float
    """GPU-seconds that it has held; of GPUs that it shared, its part."""
    restarts: int
    """-1: it never started."""
    evictions: int
    """How often it lost all its workers before it was complete."""
    held: list[Span]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
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


def outcome_of(jobs: Sequence[Ended], gpus: int) -> Outcome:
    """Return the figures of `jobs`, all complete, that ran on so many GPUs."""
    jcts = sorted((job.completed_at or 0.0) - job.submitted_at for job in jobs)
    makespan = max(job.completed_at or 0.0 for job in jobs) - min(job.submitted_at for job in jobs)
    return Outcome(
        jobs=len(jobs),
        average_jct=math.fsum(jcts) / len(jcts),
        median_jct=statistics.median(jcts),
        p99_jct=jcts[math.ceil(0.99 * len(jcts)) - 1],
        makespan=makespan,
        utilisation=math.fsum(job.service for job in jobs) / (gpus * makespan) if makespan else 0.0,
        restarts=sum(max(0, job.restarts) for job in jobs),
        evictions=sum(job.evictions for job in jobs),
    )
