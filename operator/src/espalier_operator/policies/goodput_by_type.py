"""Goodput where GPUs differ in type: each GPU goes where it raises the speedups of jobs most. Pure.

A job's speedup on a type is its speed there divided by that on an average GPU, as `goodput` otherwise divides by the
goodput with an equal part of all GPUs (eq. 9 of Pollux; 4.1 of Gavel). GPUs go to the jobs and types with the largest
value, one after the other, for the base workers of each. The length of a job need not be known: the value of a waiting
job rises with its age over its run time, so that short jobs, which have run little, end early, and no job waits for
ever. A job that reports the part of its work done counts by its rest, if that is less. A job known to take about as
long as all the others together counts more, as it would be the last one.

For the shortest makespan, jobs count by their remaining work where it is known: the longest must not be the last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from espalier_operator.policies.fair import weight_of
from espalier_operator.policies.leases import LEASE_SECONDS, gpus_of
from espalier_operator.policies.view import Candidate, TypeSpeeds, View, remaining_steps

TYPES: Final = "types"
"""Key in the memory: the last GPU type of each job."""
UNTIL: Final = "until"
"""Key in the memory of a continuous view: the end of these leases."""
_NEW_SECONDS: Final = 3600.0
"""Added to ages and run times, so that the first minutes of a job do not decide."""
_AGE: Final = 0.25
_SIZE: Final = 0.75
"""Exponents of (age / run time), and of the GPUs of a job. These three were chosen on traces made like Gavel's, with
other seeds."""
_LATE: Final = 0.9
"""A job whose rest is more than this part of the time of all jobs counts more."""
_HASTE: Final = 6.0
"""Exponent of the ratio of its rest to that part. Both were chosen on four kinds of generated jobs, among the values
with which means and makespans were below `gavel`'s for all kinds."""
_REST: Final = 0.5
"""Exponent of a job's remaining seconds on an average GPU, for the makespan; chosen on generated jobs."""

Objective = Literal["completion", "makespan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeOccupancy:
    """The running jobs on each type of GPU, until `until`."""

    chosen: Mapping[Candidate, str]
    """GPU type of each job that runs, the most valuable first."""
    free: Mapping[str, int]
    """Remaining GPUs of each type."""
    until: float
    memory: Mapping[str, Any]


def by_type(view: View, speeds: TypeSpeeds, restart_seconds: float, objective: Objective) -> TypeOccupancy:
    """Return a type of GPU for each job that runs until the next lease, the most valuable first.

    In a `continuous` view leases are repeated until their round ends, and idle GPUs go at once to the most valuable of
    the other jobs. A job that does not yield keeps its type for as long as it runs.
    """
    before: Mapping[str, str] = view.memory.get(TYPES, {})
    until, leased = view.now + LEASE_SECONDS, dict[str, str]()
    if view.continuous:
        leased = {job.key: job.gpu_type for job in view.jobs if job.gpu_type is not None and not job.yields}
        if view.now < view.memory.get(UNTIL, 0.0):
            until = view.memory[UNTIL]
            keys = {job.key for job in view.jobs}
            leased = {key: gpu_type for key, gpu_type in before.items() if key in keys} | leased
    stay = 1 + restart_seconds / LEASE_SECONDS
    free, chosen = dict(view.gpu_types), dict[Candidate, str]()
    places, values = [], _values(view, speeds, objective)
    for place, job in enumerate(view.jobs):
        size, lease = gpus_of(job), leased.get(job.key)
        if lease in free and (size <= free[lease] or not job.yields):
            free[lease] -= size
            chosen[job] = lease
            continue
        places += [
            (value * (stay if before.get(job.key) == gpu_type and job.workers else 1.0), -place, gpu_type, job)
            for gpu_type, value in values[job].items()
        ]
    places.sort(key=lambda each: each[:2], reverse=True)
    for _, _, gpu_type, job in places:
        if job not in chosen and gpus_of(job) <= free[gpu_type]:
            free[gpu_type] -= gpus_of(job)
            chosen[job] = gpu_type
    memory = {
        TYPES: {job.key: gpu_type for job, gpu_type in chosen.items()},
        **({UNTIL: until} if view.continuous else {}),
    }
    return TypeOccupancy(chosen=chosen, free=free, until=until, memory=memory)


def _values(view: View, speeds: TypeSpeeds, objective: Objective) -> dict[Candidate, dict[str, float]]:
    """Return the value of each job on each type of GPU on which it can run."""
    known = {
        job: {
            each: speeds.steps_per_second(job.key, each)
            for each, gpus in view.gpu_types.items()
            if gpus_of(job) <= gpus
        }
        for job in view.jobs
    }
    total = sum(view.gpu_types.values())
    average = {
        # The mean of speeds hardly above 0 is 0 in floating point, though the job can run.
        job: sum(speed * view.gpu_types[each] for each, speed in row.items()) / total or max(row.values(), default=0.0)
        for job, row in known.items()
    }
    able = [job for job in view.jobs if average[job]]
    if objective == "makespan":
        steps = remaining_steps(view, able, [average[job] for job in able])
        factors = {job: (rest / average[job]) ** _REST for job, rest in zip(able, steps, strict=True)}
    else:
        haste = _haste(view, able, known, average)
        factors = {
            job: float(weight_of(job.priority)) * _due(view, job) / max(1, gpus_of(job)) ** _SIZE * haste.get(job, 1.0)
            for job in able
        }
    return {
        job: {each: speed / average[job] * factors[job] for each, speed in row.items() if speed > 0 and job in factors}
        for job, row in known.items()
    }


def _due(view: View, job: Candidate) -> float:
    """Return the ratio of a job's age to its run time, as it enters the value."""
    size, age = max(1, gpus_of(job)), max(0.0, view.now - job.submitted_at)
    run = job.service if job.rest is None else min(job.service, job.rest)
    due: float = ((_NEW_SECONDS + age) / (_NEW_SECONDS + run / size)) ** _AGE
    return due


def _haste(
    view: View,
    jobs: Sequence[Candidate],
    known: Mapping[Candidate, Mapping[str, float]],
    average: Mapping[Candidate, float],
) -> dict[Candidate, float]:
    """Return the factor by which jobs of known rest count more if they would be the last ones.

    All jobs take at least as long as the longest of them on its fastest type, and as all of their work on all GPUs.
    Reports of programs do not count here, as a program would gain by reporting a long rest.
    """
    speeds = [average[job] for job in jobs]
    certain = [job for job in jobs if job.key in view.speed_models and job.rest is None]
    if not certain:
        return {}
    steps = remaining_steps(view, jobs, speeds)
    work = sum(rest / speed * gpus_of(job) for job, speed, rest in zip(jobs, speeds, steps, strict=True))
    alone = {job: rest / max(known[job].values()) for job, rest in zip(jobs, steps, strict=True)}
    horizon = max(*alone.values(), work / sum(view.gpu_types.values()))
    return {job: max(1.0, alone[job] / (_LATE * horizon)) ** _HASTE for job in certain}
