"""First in, first out; where GPUs differ in type, as in Gavel's released simulator.

Its published figures depend on three peculiarities, which are kept here to reproduce them. A job that ended hands its
type to the oldest waiting job, though younger jobs may hold the GPUs. Otherwise, the oldest job gets the last type by
name with a free GPU, even where that is too few for it. The random draw only decides which type is left out once the
taken type is full. So a type can have more jobs than GPUs, which then take turns. `gavel` with objective `fifo` has
none of these peculiarities.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Final

from espalier_operator.policies.leases import Table, gpus_of, leased, resumed, state_of
from espalier_operator.policies.view import Decision, Elasticity, View, base_share

_TYPES: Final = "types"
"""Key of the GPU type of each job that has one."""
_RANDOM: Final = "random"
"""Key of the state of the generator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FifoPolicy:
    """Base GPUs go to the oldest job; lent GPUs are divided equally, the older job first.

    In a simulation where GPUs differ in type, the oldest job gets a type as in Gavel's (`fifo_by_type`), and keeps it.
    """

    name: ClassVar[str] = "fifo"
    elasticity: ClassVar[Elasticity] = Elasticity.FIXED
    queue_order: ClassVar[str] = "by age"

    seed: int = 0
    """Seed of the random choice of a type."""

    def draws(self, *, typed: bool, continuous: bool) -> bool:
        """Return whether it uses its seed in such views: only in rounds, among types of GPU."""
        return typed and not continuous

    def decide(self, view: View) -> Decision:
        """Return a share for each job, by (submission time, key)."""
        if view.gpu_types and not view.continuous:
            return leased(view, partial(types_of_jobs, view, self.seed), list(view.gpu_types), fills=False)
        return oldest_first(view)


def oldest_first(view: View) -> Decision:
    """Return a share of the base workers for each job, by (submission time, key)."""
    return Decision(shares=tuple(map(base_share, sorted(view.jobs, key=lambda job: (job.submitted_at, job.key)))))


def types_of_jobs(view: View, seed: int, memory: Mapping[str, Any]) -> tuple[Table, Mapping[str, Any]]:
    """Return the fraction 1 for each job on its type and 0 elsewhere, with the data for the next call."""
    generator = resumed(seed, memory.get(_RANDOM))
    needs = {job.key: gpus_of(job) for job in view.jobs}
    has: dict[str, str] = dict(memory.get(_TYPES, {}))
    free = dict(view.gpu_types)
    queue = [key for key in needs if key not in has]

    def runs(job: str, gpu_type: str) -> bool:
        fits = needs[job] <= view.gpu_types[gpu_type]
        return fits and (view.speeds is None or view.speeds.steps_per_second(job, gpu_type) > 0)

    for key, gpu_type in sorted(has.items()):
        if key in needs:
            free[gpu_type] -= needs[key]
            continue
        del has[key]
        if queue and needs[queue[0]] <= free[gpu_type] and runs(queue[0], gpu_type):
            oldest = queue.pop(0)
            has[oldest] = gpu_type
            free[gpu_type] -= needs[oldest]
    left = sorted(gpu_type for gpu_type, gpus in free.items() if gpus > 0)
    for key in queue:
        roomy = [gpu_type for gpu_type in left if free[gpu_type] >= needs[key]]
        if not roomy:
            break
        drawn = roomy[generator.randrange(len(roomy))]
        taken = next((gpu_type for gpu_type in reversed(left) if runs(key, gpu_type)), None)
        if taken is not None:
            has[key] = taken
            free[taken] -= needs[key]
            if not free[taken]:
                left.remove(drawn)
    return (
        {(key,): {gpu_type: float(has.get(key) == gpu_type) for gpu_type in free} for key in needs},
        {_TYPES: has, _RANDOM: state_of(generator)},
    )
