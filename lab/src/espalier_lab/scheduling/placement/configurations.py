"""Values of many distributions of jobs over nodes: `performance.step_time` of all jobs in arrays, many at once.

A configuration is an array (jobs, nodes): the GPUs that each job has on each node.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from espalier_lab.scheduling.placement.candidates import Nodes
from espalier_lab.scheduling.placement.elastic import MOST_WORKERS, ElasticJob
from espalier_lab.scheduling.placement.occupancy import Occupancy
from espalier_lab.scheduling.placement.performance import Performance
from espalier_lab.scheduling.placement.tasks import kinds
from espalier_lab.simulator.jobs import RESTART_SECONDS

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]


class Weighed(NamedTuple):
    """A job, its weight, and its current nodes; none: it waits."""

    job: ElasticJob
    weight: float
    held: Nodes


class Configurations:
    """Values configurations of these jobs by a belief about a cluster."""

    def __init__(self, performance: Performance, cluster: Occupancy, jobs: Sequence[Weighed]) -> None:
        """Take the size of `cluster`; its jobs do not count."""
        nodes = len(cluster.free)
        self.shape = len(jobs), nodes
        self._size = cluster.node_gpus
        self._slowness = np.array([performance.slowness(node) for node in range(nodes)])
        of = [each.job.kind for each in jobs]
        self._interference = np.array([[performance.interference(one, two) for two in of] for one in of])
        np.fill_diagonal(self._interference, 0.0)
        self._rack_starts = np.arange(0, nodes, cluster.rack_nodes)
        self._nic, self._uplink = performance.nic_bytes(), performance.uplink_bytes()
        self._compute = np.array([kinds()[kind].compute_seconds for kind in of])
        self._bytes = np.array([kinds()[kind].gradient_bytes for kind in of])
        self._steps = np.array(
            [[each.job.steps_left / each.job.worth(max(1, k)) for k in range(MOST_WORKERS + 1)] for each in jobs]
        )
        self._weights = np.array([each.weight for each in jobs])
        self.held = np.array([counts(each.held, nodes) for each in jobs])

    def step_seconds(self, configurations: Counts) -> Floats:
        """Return (configurations, jobs), the seconds of a step, by (configurations, jobs, nodes)."""
        has = configurations > 0
        extra = self._interference @ (configurations / self._size)
        ratio = (np.where(has, self._slowness * (1 + extra), 0.0)).max(-1)
        several = has & (has.sum(-1, keepdims=True) > 1)
        on = several.sum(-2, keepdims=True)
        racks = np.logical_or.reduceat(has, self._rack_starts, axis=-1)
        crossing = racks & (racks.sum(-1, keepdims=True) > 1)
        of = crossing.sum(-2, keepdims=True)
        slowest = np.maximum((several * on).max(-1) / self._nic, (crossing * of).max(-1) / self._uplink)
        workers = np.maximum(1, configurations.sum(-1))
        return np.asarray(self._compute * ratio + 2 * (workers - 1) / workers * self._bytes * slowest)

    def losses(self, configurations: Counts) -> Floats:
        """Return (configurations): the sum over jobs that have GPUs of weight × logarithm of the seconds left."""
        workers = configurations.sum(-1)
        seconds = self._steps[np.arange(self.shape[0]), workers] * self.step_seconds(configurations)
        seconds += RESTART_SECONDS * (configurations != self.held).any(-1)
        return np.asarray((np.where(workers > 0, np.log(np.maximum(seconds, 1e-9)), 0.0) * self._weights).sum(-1))


def counts(nodes: Nodes, many: int) -> Counts:
    """Return (many): the GPUs on each node."""
    found = np.zeros(many, np.int64)
    for node, gpus in nodes:
        found[node] = gpus
    return found


def nodes_of(row: Counts) -> Nodes:
    """Return the placement of a row of a configuration."""
    return tuple((int(node), int(row[node])) for node in np.flatnonzero(row))
