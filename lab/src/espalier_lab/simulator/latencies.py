"""Latencies of the simulated cluster in carrying out decisions, in seconds of simulated time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from espalier_core.types.job import Preemption
from espalier_operator.model import Rules


@dataclass(frozen=True, slots=True, kw_only=True)
class Latencies:
    """Latencies; the pause of a job after a change of its workers (`jobs.RESTART_SECONDS`) comes on top."""

    start_seconds: float = 0.0
    """Time from the grant of a worker to its running process: binding, the container, imports."""
    acknowledge_seconds: float = 0.0
    """Time from a notice to the job's release of the workers: it ends a step and gathers them."""
    save_seconds: float = 0.0
    """Time from a stop request to the job's end with a checkpoint; it does not train meanwhile."""
    notice_seconds: float = 0.0
    cooldown_seconds: float = 0.0
    min_runtime_seconds: float = 0.0
    """The last three are terms of each job (`spec.preemption`)."""
    stop_grace_seconds: float = 0.0
    """As in `Rules`."""
    restarts_move: bool = True
    """Whether a change of workers restarts the whole job, as in published simulators: all its workers are placed again,
    on the nodes with the most free GPUs. Otherwise its workers stay where the planner put them."""


_TERMS: Final = Preemption()

LATENCIES: Final[dict[str, Latencies]] = {
    "none": Latencies(),
    "realistic": Latencies(
        start_seconds=10.0,  # an image that the node has; PyTorch's imports take most of it
        acknowledge_seconds=2.0,  # a few steps, as the report is written between two of them
        save_seconds=5.0,  # gigabytes to a disk of about 1 GB/s
        notice_seconds=_TERMS.notice_seconds,
        cooldown_seconds=_TERMS.cooldown_seconds,
        min_runtime_seconds=_TERMS.min_runtime_seconds,
        stop_grace_seconds=Rules().stop_grace_seconds,
        restarts_move=False,
    ),
}
"""Latencies by name. `none`: everything happens at once, as in published simulators. `realistic`: the defaults of jobs
and operator, and assumed times of an ordinary cluster."""
