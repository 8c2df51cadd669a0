"""Leases: fractions of time on types of GPUs, given in rounds (Gavel: Narayanan et al., OSDI 2020, 5).

An allocation says which fraction of its time a group should run on each type of GPU. A group is a job, or two jobs that
share GPUs. Each lease goes to the groups that have had the smallest part of their fraction, type by type.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from espalier_operator.policies.view import Candidate, Decision, Share, Speeds, View

LEASE_SECONDS: Final = 360.0
ALLOCATION_SECONDS: Final = 1920.0
"""An allocation lasts for so long at least, so that jobs which come and end all the time do not undo it."""
_HEAD_START: Final = LEASE_SECONDS / 2
"""Seconds that each group counts as having had when an allocation begins."""

Group = tuple[str, ...]
Table = dict[Group, dict[str, float]]
"""A number by group and type of GPU."""
Allocate = Callable[[Mapping[str, Any]], tuple[Table, Mapping[str, Any]]]
"""From what it remembers: fractions for all jobs of the view, in their order, and what it will remember."""

_SINCE: Final = "since"
_JOBS: Final = "jobs"
_ALLOCATION: Final = "allocation"
_RECEIVED: Final = "received"
_DEFICITS: Final = "deficits"
_LEASES: Final = "leases"
_POLICY: Final = "policy"


def leased(view: View, allocate: Allocate, types: Sequence[str], *, fills: bool = True) -> Decision:
    """Return the leases of the next round, in the order in which they were given, then jobs that wait.

    The priority of a group on a type is its fraction over the seconds that it has had there since the allocation began;
    of equals, those go first that earlier allocations owe the most time. `allocate` is asked when jobs have come or
    ended, after `ALLOCATION_SECONDS` at the earliest; until then, jobs that came wait. `types` are served in their
    order. With `fills`, groups whose fraction is 0 get GPUs that would be idle.
    """
    memory, jobs = view.memory, {job.key: job for job in view.jobs}
    allocation, received, deficits = (_read(memory, name, jobs) for name in (_ALLOCATION, _RECEIVED, _DEFICITS))
    for names, gpu_type in memory.get(_LEASES, ()):
        group = tuple(names)
        if group in received:
            received[group][gpu_type] += max(jobs[name].held_seconds for name in group)
    since, known, policy = memory.get(_SINCE, 0.0), memory.get(_JOBS, ()), memory.get(_POLICY, {})
    served = any(fraction > 0 for fractions in allocation.values() for fraction in fractions.values())
    # At time 0 the jobs of a trace have not all come, as in Gavel's simulator: that allocation may end at once.
    if not served or (set(known) != set(jobs) and (not since or view.now - since >= ALLOCATION_SECONDS)):
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
        since, known = view.now, list(jobs)
    granted: dict[Group, str] = {}
    free, waiting = dict(view.gpu_types), set(jobs)
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
        until=view.now + LEASE_SECONDS,
        memory={
            _SINCE: since,
            _JOBS: known,
            _ALLOCATION: _written(allocation),
            _RECEIVED: _written(received),
            _DEFICITS: _written(deficits),
            _LEASES: [[list(group), gpu_type] for group, gpu_type in granted.items()],
            _POLICY: policy,
        },
    )


def _ranked(gpu_type: str, allocation: Table, received: Table, deficits: Table) -> list[Group]:
    """Return the groups by priority on a type of GPU, the first one first."""

    def rank(group: Group) -> tuple[float, float, float]:
        fraction = allocation[group][gpu_type]
        return fraction / received[group][gpu_type], deficits[group][gpu_type], fraction

    return sorted(allocation, key=rank, reverse=True)


def gpus_of(job: Candidate) -> int:
    """Return the GPUs of its base workers."""
    return job.min_workers * job.gpus_per_worker


def _runs(speeds: Speeds | None, group: Group, gpu_type: str) -> bool:
    """Tell whether all of a group can train on a type of GPU, as far as is known."""
    if speeds is None:
        return True
    others = (None,) if len(group) == 1 else reversed(group)
    return all(speeds.steps_per_second(job, gpu_type, other) > 0 for job, other in zip(group, others, strict=True))


def _read(memory: Mapping[str, Any], name: str, jobs: Mapping[str, Candidate]) -> Table:
    """Return a table from memory, without groups of which a job has ended."""
    tables = ((tuple(names), dict(numbers)) for names, numbers in memory.get(name, ()))
    return {group: numbers for group, numbers in tables if all(job in jobs for job in group)}


def _written(table: Table) -> list[list[Any]]:
    return [[list(group), numbers] for group, numbers in table.items()]
