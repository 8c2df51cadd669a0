"""Goodput where GPUs differ in type: each goes where it raises the speedups of jobs most. Pure.

A job's speedup on a type is its speed there over that on an average GPU, as its goodput counts over that with an equal
part of all GPUs elsewhere (eq. 9 of Pollux; 4.1 of Gavel). GPUs go to the jobs and types with the largest value, one
after the other, for the base workers of each. Nobody needs to know how long a job will take: one that has
waited counts more, by its age over the time that it has run, so that short jobs, which have run little, end early, and
no job waits for ever. One that says what part of its work it has done counts by its rest, if that is less. Where it is
known that a job takes about as long as all the others together, it counts more: it would be the last one.

For the shortest makespan, jobs count by what they have left, as far as that is known: the longest must not be the last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from espalier_operator.policies.fair import weight_of
from espalier_operator.policies.leases import LEASE_SECONDS, gpus_of
from espalier_operator.policies.view import Candidate, TypeSpeeds, View, remaining_steps

TYPES: Final = "types"
"""In the memory: the type of GPU that each job was given last."""
UNTIL: Final = "until"
"""In the memory of a continuous view: when these leases end."""
_NEW_SECONDS: Final = 3600.0
"""Ages and times run count from there, so that the first minutes of a job do not decide."""
_AGE: Final = 0.25
_SIZE: Final = 0.75
"""Exponents of age over time run, and of the GPUs that a job takes. These three were chosen on traces made like those
of Gavel, with other seeds."""
_LATE: Final = 0.9
"""A job whose rest is more than this part of what all jobs take counts more."""
_HASTE: Final = 6.0
"""Exponent of its rest over that. Both were chosen on four kinds of generated jobs, among those with which means and
makespans were below those of `gavel` in all of them."""
_REST: Final = 0.5
"""Exponent of the seconds that a job has left on an average GPU, for the makespan; chosen on generated jobs."""

Objective = Literal["completion", "makespan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeOccupancy:
    """Who runs on which type of GPU until `until`."""

    chosen: Mapping[Candidate, str]
    """The type of each job that runs, the most valuable first."""
    free: Mapping[str, int]
    """GPUs of each type that are left."""
    until: float
    memory: Mapping[str, Any]


def by_type(view: View, speeds: TypeSpeeds, restart_seconds: float, objective: Objective) -> TypeOccupancy:
    """Return a type of GPU for each job that runs until the next lease, the most valuable first.

    In a `continuous` view what was leased is leased again until its round ends, and what is idle goes to the most
    valuable of the others at once. A job that does not yield keeps the type that it has for as long as it runs.
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
        # The mean of speeds that are hardly above 0 is 0 in floating point; their job can run all the same.
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
    """Return how much a job has waited for what it has run."""
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
    """Return by how much jobs count more that would be the last ones, of those whose rest is known.

    All take as long as the longest of them on its fastest type, and as all of their work on all GPUs. What a program
    says of itself does not count: it would gain by saying that it takes long.
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
