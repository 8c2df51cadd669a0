"""Leases: fractions of time on types of GPUs, given in rounds (Gavel: Narayanan et al., OSDI 2020, 5).

An allocation gives the fraction of its time that a group should run on each type of GPU. A group is a job, or two jobs
that share GPUs. Each lease goes to the groups that have had the smallest part of their fraction, type by type.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from espalier_operator.policies.view import Candidate, Decision, Share, TypeSpeeds, View

LEASE_SECONDS: Final = 360.0
ALLOCATION_SECONDS: Final = 1920.0
"""Minimum duration of an allocation, so that jobs which come and end all the time do not undo it."""
MATERIAL: Final = 0.1
"""Relative change of a speed that makes an allocation out of date: measurements always differ a little."""
_HEAD_START: Final = LEASE_SECONDS / 2
"""Seconds that each group is credited with at the beginning of an allocation."""

Group = tuple[str, ...]
Table = dict[Group, dict[str, float]]
"""A number by group and type of GPU."""
Allocate = Callable[[Mapping[str, Any]], tuple[Table, Mapping[str, Any]]]
"""Function of its memory. Returns fractions for all jobs of the view, in their order, and its next memory."""

_SINCE: Final = "since"
_JOBS: Final = "jobs"
_ALLOCATION: Final = "allocation"
_RECEIVED: Final = "received"
_DEFICITS: Final = "deficits"
_LEASES: Final = "leases"
_POLICY: Final = "policy"
_SPEEDS: Final = "speeds"
"""Key of the speeds from which the allocation was computed."""
_UNTIL: Final = "until"
"""Key of the end of the round; only where the view is continuous."""
_TYPES: Final = "types"
"""Key of the GPUs of each type at the last decision; only where the view is continuous."""
_SERVICE: Final = "service"
"""Key of the service of each job at the last decision; only where the view is continuous."""


def leased(
    view: View,
    allocate: Allocate,
    types: Sequence[str],
    *,
    fills: bool = True,
    speeds: Mapping[str, Mapping[str, float]] | None = None,
) -> Decision:
    """Return the leases of the next round, in the order in which they were given, then waiting jobs.

    The priority of a group on a type is its fraction over the seconds that it has had there since the allocation began;
    among equals, groups that earlier allocations owe the most time go first. `allocate` is called when jobs have come
    or ended, or when one of the `speeds` of a job by type has changed (`MATERIAL`), after `ALLOCATION_SECONDS` at the
    earliest; until then, new jobs wait. `types` are served in their order. With `fills`, groups whose fraction is 0
    get GPUs that would be idle.

    In a `continuous` view a lease holds until its round ends. GPUs idle before that are leased at once, also to jobs
    newer than the allocation, and a job that does not yield keeps its type for as long as it runs.
    """
    memory, jobs = view.memory, {job.key: job for job in view.jobs}
    allocation, received, deficits = (_read(memory, name, jobs, types) for name in (_ALLOCATION, _RECEIVED, _DEFICITS))
    for group, gpu_type, seconds in _served(view, memory):
        if group in received:
            received[group][gpu_type] += seconds
    since, known, policy = memory.get(_SINCE, 0.0), memory.get(_JOBS, ()), memory.get(_POLICY, {})
    assumed = memory.get(_SPEEDS, {})
    served = any(fraction > 0 for fractions in allocation.values() for fraction in fractions.values())
    # At time 0 not all first jobs of a trace have come, as in Gavel's simulator: that allocation may end at once.
    changed = set(known) != set(jobs) or _drifted(assumed, speeds or {})
    if view.continuous:
        # A round is long enough there; jobs that came meanwhile have had idle GPUs.
        due = view.now >= memory.get(_UNTIL, 0.0) and (changed or memory.get(_TYPES) != dict(view.gpu_types))
    else:
        due = changed and (not since or view.now - since >= ALLOCATION_SECONDS)
    if not served or due:
        elapsed = view.now - since
        owed = {
            group: {
                each: deficits[group][each] + (fractions[each] * elapsed - (received[group][each] - _HEAD_START))
                for each in types
            }
            for group, fractions in allocation.items()
        }
        allocation, policy = allocate(policy)
        deficits = {group: owed.get(group) or dict.fromkeys(types, 0.0) for group in allocation}
        received = {group: dict.fromkeys(types, _HEAD_START) for group in allocation}
        since, known, assumed = view.now, list(jobs), _rounded(speeds or {})
    granted: dict[Group, str] = {}
    free, waiting = dict(view.gpu_types), set(jobs)
    until = view.now + LEASE_SECONDS
    if view.continuous:
        _admit_new(types, jobs, allocation, received, deficits)
        until = memory[_UNTIL] if view.now < memory.get(_UNTIL, 0.0) else until
        for group, gpu_type in _held(view, memory, until):
            if not waiting.issuperset(group):
                continue
            job, gpus = jobs[group[0]], gpus_of(jobs[group[0]])
            if gpus <= free[gpu_type] or (not job.yields and job.gpu_type == gpu_type):
                granted[group] = gpu_type
                free[gpu_type] -= gpus
                waiting.difference_update(group)
    for gpu_type in types:
        for group in _ranked(gpu_type, allocation, received, deficits):
            gpus = gpus_of(jobs[group[0]])
            wanted = fills or allocation[group][gpu_type] > 0
            if wanted and gpus <= free[gpu_type] and waiting.issuperset(group) and _runs(view.speeds, group, gpu_type):
                granted[group] = gpu_type
                free[gpu_type] -= gpus
                waiting.difference_update(group)
    shares = [
        Share(job=name, workers=jobs[name].min_workers, gpu_type=gpu_type, beside=group[0] if place else None)
        for group, gpu_type in granted.items()
        for place, name in enumerate(group)
    ]
    return Decision(
        shares=(*shares, *(Share(job=name, workers=0) for name in jobs if name in waiting)),
        preempts=True,
        until=until,
        memory={
            _SINCE: since,
            _JOBS: known,
            _ALLOCATION: _written(allocation),
            _RECEIVED: _written(received),
            _DEFICITS: _written(deficits),
            _LEASES: [[list(group), gpu_type] for group, gpu_type in granted.items()],
            _POLICY: policy,
            **({_SPEEDS: assumed} if assumed else {}),
            **(_continued(view, until) if view.continuous else {}),
        },
    )


def _drifted(assumed: Mapping[str, Mapping[str, float]], speeds: Mapping[str, Mapping[str, float]]) -> bool:
    """Return whether a job's speed on a type has changed materially; new jobs and types do not count."""
    return any(
        abs(speed - assumed[job][gpu_type]) > MATERIAL * max(speed, assumed[job][gpu_type])
        for job, row in speeds.items()
        if job in assumed
        for gpu_type, speed in row.items()
        if gpu_type in assumed[job]
    )


def _rounded(speeds: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Return the speeds with the digits that are stored."""
    return {job: {each: float(f"{speed:.4g}") for each, speed in row.items()} for job, row in speeds.items()}


def _ranked(gpu_type: str, allocation: Table, received: Table, deficits: Table) -> list[Group]:
    """Return the groups by priority on a type of GPU, the highest first."""

    def rank(group: Group) -> tuple[float, float, float]:
        fraction = allocation[group][gpu_type]
        return fraction / received[group][gpu_type], deficits[group][gpu_type], fraction

    return sorted(allocation, key=rank, reverse=True)


def gpus_of(job: Candidate) -> int:
    """Return the GPUs of a job's base workers."""
    return job.min_workers * job.gpus_per_worker


def _runs(speeds: TypeSpeeds | None, group: Group, gpu_type: str) -> bool:
    """Return whether all of a group can train on a type of GPU, as far as is known."""
    if speeds is None:
        return True
    others = (None,) if len(group) == 1 else reversed(group)
    return all(speeds.steps_per_second(job, gpu_type, other) > 0 for job, other in zip(group, others, strict=True))


def fastest_first(view: View) -> list[str]:
    """Return the types of GPU of a view; in a continuous one, by the sum of all jobs' speeds, the fastest first."""
    speeds, types = view.speeds, list(view.gpu_types)
    if not view.continuous or speeds is None:
        return types
    total = {each: sum(speeds.steps_per_second(job.key, each) for job in view.jobs) for each in types}
    return sorted(types, key=lambda each: -total[each])


def _served(view: View, memory: Mapping[str, Any]) -> Iterator[tuple[Group, str, float]]:
    """Yield (group, GPU type, seconds) for the GPUs held since the last decision."""
    if view.continuous:
        before = memory.get(_SERVICE, {})
        for job in view.jobs:
            if job.gpu_type is not None and job.gpu_type in view.gpu_types and job.key in before:
                yield (job.key,), job.gpu_type, max(0.0, job.service - before[job.key]) / max(1, gpus_of(job))
        return
    seconds = {job.key: job.held_seconds for job in view.jobs}
    for names, gpu_type in memory.get(_LEASES, ()):
        if all(name in seconds for name in names):
            yield tuple(names), gpu_type, max(seconds[name] for name in names)


def _continued(view: View, until: float) -> Mapping[str, Any]:
    """Return the part of the memory for a continuous view."""
    service = {job.key: job.service for job in view.jobs}
    return {_UNTIL: until, _TYPES: dict(view.gpu_types), _SERVICE: service}


def _held(view: View, memory: Mapping[str, Any], until: float) -> Iterator[tuple[Group, str]]:
    """Yield the standing leases in a continuous view: of jobs that do not yield, and those of the current round."""
    for job in view.jobs:
        if not job.yields and job.gpu_type is not None and job.gpu_type in view.gpu_types:
            yield (job.key,), job.gpu_type
    if until == memory.get(_UNTIL):
        for names, gpu_type in memory.get(_LEASES, ()):
            if gpu_type in view.gpu_types:
                yield tuple(names), gpu_type


def _admit_new(types: Sequence[str], jobs: Iterable[str], allocation: Table, received: Table, deficits: Table) -> None:
    """Add jobs that came since the last allocation with a fraction of 0, so that they get idle GPUs."""
    for group in ((job,) for job in jobs):
        if group not in allocation:
            allocation[group], deficits[group] = dict.fromkeys(types, 0.0), dict.fromkeys(types, 0.0)
            received[group] = dict.fromkeys(types, _HEAD_START)


def _read(memory: Mapping[str, Any], name: str, jobs: Mapping[str, Candidate], types: Sequence[str]) -> Table:
    """Return a table from memory, without groups with ended jobs, and with all `types`."""
    least = _HEAD_START if name == _RECEIVED else 0.0
    tables = ((tuple(names), numbers) for names, numbers in memory.get(name, ()))
    return {
        group: {each: numbers.get(each, least) for each in types}
        for group, numbers in tables
        if all(job in jobs for job in group)
    }


def _written(table: Table) -> list[list[Any]]:
    return [[list(group), numbers] for group, numbers in table.items()]


def resumed(seed: int, state: Sequence[Any] | None) -> random.Random:
    """Return a generator in a `state` from `state_of`; None: at the beginning of its seed."""
    generator = random.Random(seed)
    if state is not None:
        version, numbers, gauss = state
        generator.setstate((version, tuple(numbers), gauss))
    return generator


def state_of(generator: random.Random) -> list[Any]:
    """Return the state of a generator as plain JSON."""
    version, numbers, gauss = generator.getstate()
    return [version, list(numbers), gauss]
