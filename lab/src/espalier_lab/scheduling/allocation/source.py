"""DL2's cluster: types of jobs, their measured speeds, and the resources of workers and parameter servers.

Peng et al., DL2 (arXiv 1909.06040), with its released settings and measurements. Between measurements, speeds are
interpolated as there: by radial basis functions of the distance in (servers, workers) (Hardy, 1971).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final

import numpy as np
from numpy.typing import NDArray

from espalier_lab.scheduling.allocation import data
from espalier_lab.scheduling.learned.description import WORKERS_AND_SERVERS, Floats
from espalier_lab.scheduling.learned.speeds import STEPS

_LEAST: Final = 1e-6
"""Batches per second below which a job counts as not training: interpolation gives values about 0."""


@dataclass(frozen=True, slots=True, eq=False)
class AllocationSettings:
    """The settings."""

    names: tuple[str, ...]
    """Names of the types of jobs."""
    slots: Floats
    """(types, servers + 1, workers + 1): the slots of a whole job; infinite: it does not train."""
    demand: NDArray[np.int64]
    """(types, options, resources): a node's resources for one more worker, one more server, and one of both."""
    node: NDArray[np.int64]
    """(resources): capacity of a node."""
    slot_seconds: float
    most_workers: int
    most_servers: int
    jobs: int
    """Number of jobs in a trace."""
    arrivals: tuple[int, ...]
    """Arrivals of jobs per slot, repeated, starting at one of the first `offsets`."""
    offsets: int
    most_arrivals: int
    """Maximum number of arrivals in a slot."""
    most_slots: int = 1000
    """Slots after which a job is given up and counts as complete: with some numbers of workers and servers jobs do not
    train at all. The source gives up the whole trace then."""

    @property
    def best_slots(self) -> Floats:
        """(types): the slots of a whole job with the best numbers of servers and workers."""
        return np.asarray(self.slots.min(axis=(1, 2)))


@cache
def source() -> AllocationSettings:
    """Return the settings of the source."""
    read = json.loads(files(data).joinpath("dl2.json").read_text())
    workers, servers, seconds = read["maxWorkers"], read["maxServers"], read["slotSeconds"]
    tables = []
    for kind in read["types"]:
        batches = interpolated(np.array(kind["measured"]), servers, workers)
        trains = batches > _LEAST
        trains[0], trains[:, 0] = False, False
        whole = kind["samplesAnEpoch"] * kind["epochs"] / seconds
        tables.append(np.where(trains, whole / np.where(trains, batches, 1), np.inf))
    server = np.array(read["serverDemand"])
    demand = [
        [
            more[0] * server + more[1] * np.array(kind["workerDemand"])
            for more in (STEPS[option] for option in WORKERS_AND_SERVERS)
        ]
        for kind in read["types"]
    ]
    return AllocationSettings(
        names=tuple(kind["name"] for kind in read["types"]),
        slots=np.array(tables),
        demand=np.array(demand, np.int64),
        node=np.array(read["nodeCapacity"], np.int64),
        slot_seconds=float(seconds),
        most_workers=workers,
        most_servers=servers,
        jobs=read["jobs"],
        arrivals=tuple(read["arrivals"]["pattern"]),
        offsets=read["arrivals"]["offsets"],
        most_arrivals=read["arrivals"]["atMost"],
    )


def interpolated(measured: Floats, servers: int, workers: int) -> Floats:
    """Return speeds (servers + 1, workers + 1) from lines (servers, workers, speed): linear radial basis functions."""
    points, values = measured[:, :2], measured[:, 2]
    weights = np.linalg.solve(_distances(points, points), values)
    grid = np.stack(np.meshgrid(np.arange(servers + 1), np.arange(workers + 1), indexing="ij"), axis=-1).astype(float)
    return (_distances(grid.reshape(-1, 2), points) @ weights).reshape(servers + 1, workers + 1)


def _distances(first: Floats, second: Floats) -> Floats:
    return np.asarray(np.linalg.norm(first[:, None, :] - second[None, :, :], axis=-1))
