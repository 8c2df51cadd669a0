"""The network's input: names and scales, shared by learning and serving. Frozen: a change needs a new `FORMAT`.

Raw quantities are scaled here. Seconds and shares span orders of magnitude, so their logarithms are taken. Nothing
depends on the names of models or the size of the cluster.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Inputs32 = NDArray[np.float32]

FORMAT: Final = "espalier/allocation-v1"
JOB_FEATURES: Final = (
    "workers", "workers_part", "servers", "servers_part", "held", "share", "age", "left", "best_left", "known", "done",
)  # fmt: skip
OPTION_FEATURES: Final = (
    "gain", "gain_ahead", "saved", "saved_ahead", "saved_by_share", "share", "of_free", "restores",
)  # fmt: skip
CLUSTER_FEATURES: Final = ("free", "jobs", "room", "served")
FREE: Final = CLUSTER_FEATURES.index("free")
OF_FREE: Final = OPTION_FEATURES.index("of_free")
"""The features that change with every gift."""

WORKERS_ONLY: Final = ("worker",)
"""Options where gradients are exchanged by all-reduce, as in the product."""
WORKERS_AND_SERVERS: Final = ("worker", "server", "both")
"""Options with parameter servers, as in DL2."""

MOMENT_SECONDS: Final = 600.0
"""Scale of seconds, which enter as log(1 + seconds / this)."""
MOST: Final = 12.0
"""Limit on the absolute value of an input."""
MOST_SECONDS: Final = 1e7
"""Limit on seconds, such as those of a job without workers."""
_SCALE: Final = 4.0
"""Divisor of logarithms of seconds, so that most inputs are below 1."""


@dataclass(frozen=True, slots=True, eq=False)
class JobQuantities:
    """Quantities of jobs, each of shape (..., jobs). Batches may have any leading dimensions."""

    workers: Floats
    """Workers in this decision so far."""
    most_workers: Floats
    servers: Floats
    """Parameter servers in this decision so far; 0 with all-reduce."""
    most_servers: Floats
    held: Floats
    """Workers held now; 0: it waits."""
    share: Floats
    """Share of the cluster in this decision, of the resource with the largest share."""
    age: Floats
    """Seconds since it was submitted."""
    left: Floats
    """Seconds left with the workers and servers of this decision; infinite without any."""
    best_left: Floats
    """Seconds left with the best numbers of workers and servers."""
    known: Floats
    """1: its speed is known; else the seconds and gains have no meaning, and count as 0."""
    done: Floats
    """Part of its work that is done, 0 to 1; 0 if unknown."""


@dataclass(frozen=True, slots=True, eq=False)
class OptionQuantities:
    """Effects of each option on a job, each of shape (..., jobs, options)."""

    gain: Floats
    """Logarithm of the speed afterwards over the speed before."""
    gain_ahead: Floats
    """Maximum mean gain per step over any number of steps that begin with it."""
    saved: Floats
    """Reduction of the remaining seconds; may be negative."""
    saved_ahead: Floats
    """Maximum mean reduction per step, over any number of steps."""
    share: Floats
    """Share of the cluster that it takes, of the resource with the largest share."""
    fits: Floats
    """1: it can be given."""
    restores: Floats
    """1: afterwards the job has no more workers than it holds now."""


@dataclass(frozen=True, slots=True, eq=False)
class NetworkInputs:
    """The input of the network, float32."""

    jobs: Inputs32
    """(..., jobs, len(JOB_FEATURES))."""
    options: Inputs32
    """(..., jobs, options, len(OPTION_FEATURES))."""
    cluster: Inputs32
    """(..., len(CLUSTER_FEATURES))."""
    present: Inputs32
    """(..., jobs): 1 for a job, 0 for padding."""


def inputs(jobs: JobQuantities, options: OptionQuantities, free: Floats, present: Floats) -> NetworkInputs:
    """Scale the quantities, none of which is NaN.

    `free`, (...): the free part of the cluster; `present`, (..., jobs): 0 for padding.
    """
    number = np.maximum(1.0, present.sum(-1))
    there = present.astype(np.float32)
    seen = job_features(jobs, number[..., None])
    offered = option_features(options, jobs.known, number[..., None])
    offered[..., OF_FREE] = of_free(options.share, options.fits, free[..., None, None])
    dearest = (options.share.max(-1) * present).sum(-1)
    served = ((jobs.workers > 0) * present).sum(-1)
    return NetworkInputs(
        jobs=seen * there[..., None],
        options=offered * there[..., None, None],
        cluster=cluster_features(free, number, dearest, served),
        present=there,
    )


def job_features(jobs: JobQuantities, many: Floats | float) -> Inputs32:
    """Return (..., jobs, len(JOB_FEATURES)); `many`: the number of jobs, which broadcasts with the quantities."""
    seconds = _moments(jobs.workers.shape, jobs.age, jobs.left, jobs.best_left)
    seconds[..., 1:] *= jobs.known[..., None]
    return _columns(
        np.log2(1 + jobs.workers) / 4,
        jobs.workers / np.maximum(1, jobs.most_workers),
        np.log2(1 + jobs.servers) / 4,
        jobs.servers / np.maximum(1, jobs.most_servers),
        np.log2(1 + jobs.held) / 4,
        np.log1p(jobs.share * many),
        seconds[..., 0],
        seconds[..., 1],
        seconds[..., 2],
        jobs.known,
        jobs.done,
    )


def option_features(options: OptionQuantities, known: Floats, many: Floats | float) -> Inputs32:
    """Return (..., jobs, options, len(OPTION_FEATURES)), with 0 for `OF_FREE`, which depends on the free part."""
    part = options.share * np.asarray(many)[..., None]
    by_share = options.saved_ahead / np.maximum(part, 1e-6)
    seconds = _moments(part.shape, options.saved, options.saved_ahead, by_share)
    found = _columns(
        options.gain,
        options.gain_ahead,
        seconds[..., 0],
        seconds[..., 1],
        seconds[..., 2],
        np.log1p(part),
        0.0,
        options.restores,
    )
    found[..., :5] *= known[..., None, None]
    return found


def of_free(share: Floats, fits: Floats, free: Floats | float) -> Floats:
    """Return the feature `OF_FREE`: the part of the free resources that an option takes; 1 if it does not fit."""
    return np.where(fits > 0, np.minimum(share / np.maximum(free, 1e-9), MOST), 1.0)


def cluster_features(
    free: Floats | float, number: Floats | float, dearest: Floats | float, served: Floats | float
) -> Inputs32:
    """Return (..., len(CLUSTER_FEATURES)).

    `free`: the free part of the cluster; `number` of jobs; `dearest`: the part of the cluster for the most expensive
    option of every job; `served`: the number of jobs that have workers.
    """
    return _columns(
        np.asarray(free), np.log1p(number) / 4, np.log1p(1 / np.maximum(dearest, 1e-9)) / 4, served / number
    )


def _moments(shape: tuple[int, ...], *columns: Floats) -> Floats:
    """Return signed logarithms of seconds, (*shape, columns), limited to `MOST_SECONDS`."""
    found = np.empty((*shape, len(columns)))
    for place, column in enumerate(columns):
        found[..., place] = column
    size = np.minimum(np.abs(found), MOST_SECONDS)
    return np.copysign(np.log1p(size / MOMENT_SECONDS) / _SCALE, found)


def _columns(first: Floats, *others: Floats | float) -> Inputs32:
    """Return features of the shape of the first one, along a new last dimension, within their bounds."""
    found = np.empty((*first.shape, 1 + len(others)), np.float32)
    for place, column in enumerate((first, *others)):
        found[..., place] = column
    np.minimum(found, MOST, out=found)
    return np.maximum(found, -MOST, out=found)
