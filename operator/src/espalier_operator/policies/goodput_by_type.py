"""Goodput where GPUs differ in type: each goes where it raises the speedups of jobs most. Pure.

A job's speedup on a type is its speed there over that on an average GPU, as its goodput counts over that with an equal
part of all GPUs elsewhere (eq. 9 of Pollux; 4.1 of Gavel). GPUs go to the jobs and types with the largest value, one
after the other; jobs keep the workers that they asked for. Nobody needs to know how long a job will take: one that has
waited counts more, by its age over the time that it has run, so that short jobs, which have run little, end early, and
no job waits for ever.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from espalier_operator.policies.fair import weight_of
from espalier_operator.policies.leases import LEASE_SECONDS, gpus_of
from espalier_operator.policies.view import Candidate, Decision, Speeds, View, base_share

TYPES: Final = "types"
"""In the memory: the type of GPU that each job was given last."""
_NEW_SECONDS: Final = 3600.0
"""Ages and times run count from there, so that the first minutes of a job do not decide."""
_AGE: Final = 0.25
_SIZE: Final = 0.75
"""Exponents of age over time run, and of the GPUs that a job takes. These three were chosen on traces made like those
of Gavel, with other seeds."""


def by_type(view: View, speeds: Speeds, restart_seconds: float) -> Decision:
    """Return a share with a type of GPU for each job that runs until the next lease, the most valuable first."""
    before: Mapping[str, str] = view.memory.get(TYPES, {})
    stay = 1 + restart_seconds / LEASE_SECONDS
    places = [
        (value * (stay if before.get(job.key) == gpu_type and job.workers else 1.0), -place, gpu_type, job)
        for place, job in enumerate(view.jobs)
        for gpu_type, value in _values(view, speeds, job).items()
    ]
    places.sort(key=lambda each: each[:2], reverse=True)
    free, chosen = dict(view.gpu_types), dict[str, str]()
    shares = []
    for _, _, gpu_type, job in places:
        if job.key not in chosen and gpus_of(job) <= free[gpu_type]:
            free[gpu_type] -= gpus_of(job)
            chosen[job.key] = gpu_type
            shares.append(replace(base_share(job), gpu_type=gpu_type))
    waiting = (replace(base_share(job), workers=0, spare=0) for job in view.jobs if job.key not in chosen)
    return Decision(shares=(*shares, *waiting), preempts=True, until=view.now + LEASE_SECONDS, memory={TYPES: chosen})


def _values(view: View, speeds: Speeds, job: Candidate) -> dict[str, float]:
    """Return the value of a job on each type of GPU on which it can run."""
    size = gpus_of(job)
    known = {each: speeds.steps_per_second(job.key, each) for each, gpus in view.gpu_types.items() if size <= gpus}
    average = sum(speed * view.gpu_types[each] for each, speed in known.items()) / sum(view.gpu_types.values())
    if not average:
        return {}
    age, run = max(0.0, view.now - job.submitted_at), job.service / max(1, size)
    due = ((_NEW_SECONDS + age) / (_NEW_SECONDS + run)) ** _AGE
    factor = float(weight_of(job.priority)) * due / (average * max(1, size) ** _SIZE)
    return {each: speed * factor for each, speed in known.items() if speed > 0}
