"""First in, first out where GPUs differ in type, as Gavel's released simulator has it.

Its published figures rest on three peculiarities, which are kept here so that they can be had again. A job that ended
hands its type to the oldest that waits, though younger jobs may hold the GPUs. Of others, the oldest gets the type that
is the last by name of those with a free GPU, even where that is too few for it. What is drawn at random says only which
type is left out once that one is full. So a type can have more jobs than GPUs: then they take turns. `gavel` with
objective `fifo` has none of that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from espalier_operator.policies.draws import resumed, state_of
from espalier_operator.policies.leases import Table, gpus_of
from espalier_operator.policies.view import View

_TYPES: Final = "types"
"""The type of GPU of each job that has one."""
_RANDOM: Final = "random"
"""The state of the generator."""


def types_of_jobs(view: View, seed: int, memory: Mapping[str, Any]) -> tuple[Table, Mapping[str, Any]]:
    """Return the fraction 1 for each job on the type that it has, and 0 elsewhere, with what to remember."""
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
