"""Tasks of worker placement: a cluster with hidden performance, and its arriving jobs, drawn from a seed.

The source (Yang et al., IEEE TCC 2023) publishes neither its cluster nor its workload, so the family is ours; this
module defines all its distributions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from espalier_lab.scheduling.seed_split import SeedSplit

Floats = NDArray[np.float64]

KINDS: Final = 16
"""Number of kinds of models that jobs train."""
MOST_INTERFERENCE: Final = 6.0
"""Maximum slowdown by one other job: a step takes at most seven times as long."""
KIND_DEVIATION: Final = 0.35
"""Standard deviation, over tasks, of each kind's sensitivity and pressure."""
TASK_DEVIATION: Final = 0.3
"""Standard deviation, over tasks, of the pressure of all kinds together."""
_SIZES: Final = (1, 2, 4, 8)
_SIZE_PARTS: Final = (0.3, 0.3, 0.25, 0.15)
_KINDS_SEED: Final = 2_023


@dataclass(frozen=True, slots=True)
class Family:
    """The distribution of clusters and workloads from which tasks are drawn."""

    nodes: int = 12
    node_gpus: int = 4
    rack_nodes: int = 4
    jobs: int = 120
    load: float = 0.35
    """GPU-seconds of the jobs on an ideal cluster, relative to the cluster's GPU-seconds while they arrive."""
    median_seconds: float = 900.0
    sigma: float = 0.7
    """Standard deviation of the logarithm of a job's seconds on an ideal cluster."""

    @property
    def gpus(self) -> int:
        """Number of GPUs of all nodes."""
        return self.nodes * self.node_gpus


@dataclass(frozen=True, slots=True)
class ModelKind:
    """The known properties of a kind of model, measured alone on an ideal node."""

    compute_seconds: float
    """Seconds of a step without the exchange of gradients."""
    gradient_bytes: float
    sensitivity: float
    """Slowdown by others on its node, as a logarithm, mean over tasks. Hidden."""
    pressure: float
    """Slowdown of others on its node, as a logarithm, mean over tasks. Hidden."""


@dataclass(frozen=True, slots=True, eq=False)
class PlacementTask:
    """The hidden performance of a cluster, and the mix of its jobs."""

    slowness: Floats = field(repr=False)
    """(nodes): factor on the duration of a step relative to an ideal node; 1 for most."""
    interference: Floats = field(repr=False)
    """(kinds, kinds): relative slowdown of the first if the second has all GPUs of its node."""
    nic_bytes: float
    """Bytes per second into and out of a node."""
    uplink_bytes: float
    """Bytes per second into and out of a rack."""
    mix: Floats = field(repr=False)
    """(kinds): the probability of each kind."""


@dataclass(frozen=True, slots=True)
class JobArrival:
    """An arriving job."""

    name: str
    at: float
    kind: int
    gpus: int
    steps: float
    """Steps until it is complete."""


@dataclass(frozen=True, slots=True)
class PlacementEpisode:
    """The contents of one run, equal for each placer."""

    family: Family
    tasks: tuple[PlacementTask, ...]
    """One task, or two: the second holds from the middle on."""
    shift_at: float
    """Start of the second task: the arrival of the job in the middle; infinite for one task."""
    arrivals: tuple[JobArrival, ...]

    def task_at(self, now: float) -> PlacementTask:
        """Return the task at this time."""
        return self.tasks[-1] if now >= self.shift_at else self.tasks[0]


@cache
def kinds() -> tuple[ModelKind, ...]:
    """Return the kinds of models, which are the same in all tasks."""
    rng = np.random.default_rng(_KINDS_SEED)
    return tuple(
        ModelKind(
            compute_seconds=float(np.exp(rng.uniform(np.log(0.08), np.log(0.8)))),
            gradient_bytes=float(np.exp(rng.uniform(np.log(4e6), np.log(1e8)))),
            sensitivity=float(rng.normal(-0.7, 0.9)),
            pressure=float(rng.normal(0.5, 1.0)),
        )
        for _ in range(KINDS)
    )


def episode(family: Family, purpose: SeedSplit, index: int, *, shift: bool = False) -> PlacementEpisode:
    """Draw the episode with this number; with `shift`, the workload and the cluster change in the middle."""
    rng = np.random.default_rng((purpose, index))
    tasks = tuple(draw_task(family, rng) for _ in range(2 if shift else 1))
    seconds = np.exp(rng.normal(np.log(family.median_seconds), family.sigma, family.jobs))
    sizes = rng.choice(_SIZES, family.jobs, p=_SIZE_PARTS)
    span = float((seconds * sizes).sum()) / (family.load * family.gpus)
    gaps = rng.exponential(1.0, family.jobs)
    times = np.cumsum(gaps) * span / gaps.sum()
    middle = family.jobs // 2
    table = kinds()
    arrivals = []
    for number in range(family.jobs):
        kind = int(rng.choice(KINDS, p=tasks[-1 if number >= middle else 0].mix))
        steps = float(seconds[number]) / table[kind].compute_seconds
        arrivals.append(JobArrival(f"job-{number}", float(times[number]), kind, int(sizes[number]), steps))
    return PlacementEpisode(family, tasks, float(times[middle]) if shift else np.inf, tuple(arrivals))


def draw_task(family: Family, rng: np.random.Generator) -> PlacementTask:
    """Draw the hidden performance of a cluster."""
    slowness = np.ones(family.nodes)
    slow = rng.choice(family.nodes, int(rng.integers(2, 6)), replace=False)
    slowness[slow] = rng.uniform(1.3, 2.5, len(slow))
    table = kinds()
    sensitivity = np.array([kind.sensitivity for kind in table]) + rng.normal(0, KIND_DEVIATION, KINDS)
    pressure = np.array([kind.pressure for kind in table]) + rng.normal(0, KIND_DEVIATION, KINDS)
    pressure += rng.normal(0, TASK_DEVIATION)
    rest = rng.normal(0, 0.15, (KINDS, KINDS))  # about rank 1, not quite
    nic = float(rng.uniform(3e9, 12e9))
    uplink = nic * family.rack_nodes / float(rng.uniform(2, 6))
    return PlacementTask(
        slowness=slowness,
        interference=np.minimum(MOST_INTERFERENCE, np.exp(sensitivity[:, None] + pressure[None, :] + rest)),
        nic_bytes=nic,
        uplink_bytes=uplink,
        mix=rng.dirichlet(np.full(KINDS, 0.8)),
    )
