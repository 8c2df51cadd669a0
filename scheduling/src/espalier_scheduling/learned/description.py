"""What the network sees: names and scales, once for learning and for serving. Frozen: a change is a new `FORMAT`.

Quantities are given raw and scaled here. Seconds and shares span orders of magnitude, so their logarithms are taken.
All is free of the names of models and of the size of the cluster.
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

WORKERS_ONLY: Final = ("worker",)
"""What jobs can get more of where gradients are exchanged by all-reduce: the product."""
WORKERS_AND_SERVERS: Final = ("worker", "server", "both")
"""With parameter servers, as in DL2."""

MOMENT_SECONDS: Final = 600.0
"""Seconds are seen as log(1 + seconds / this)."""
MOST: Final = 12.0
"""What is seen is between minus and plus this."""
MOST_SECONDS: Final = 1e7
"""More of them, as those that a job without workers takes, are seen as so many."""
_SCALE: Final = 4.0
"""Divides logarithms of seconds: so most of what is seen is below 1."""


@dataclass(frozen=True, slots=True, eq=False)
class JobQuantities:
    """What is known of jobs; each of shape (..., jobs). Batches may have any leading dimensions."""

    workers: Floats
    """In this decision so far."""
    most_workers: Floats
    servers: Floats
    """Parameter servers so far; 0 with all-reduce."""
    most_servers: Floats
    held: Floats
    """Workers that it has now; 0: it waits."""
    share: Floats
    """The part of the cluster that it has in this decision: of the resource of which it has the largest part."""
    age: Floats
    """Seconds since it was submitted."""
    left: Floats
    """Seconds that it still takes with what it has in this decision; infinite with none."""
    best_left: Floats
    """The same with the numbers of workers and servers that are best for it."""
    known: Floats
    """1: its speed is known; else the seconds and gains mean nothing, and count as 0."""
    done: Floats
    """The part of its work that is done, 0 to 1; 0 where it is not known."""


@dataclass(frozen=True, slots=True, eq=False)
class OptionQuantities:
    """What each option would do for a job; each of shape (..., jobs, options)."""

    gain: Floats
    """Logarithm of the speed after it over the speed before."""
    gain_ahead: Floats
    """The largest mean gain a step over any number of steps that begin with it."""
    saved: Floats
    """Seconds by which what is left gets shorter; may be negative."""
    saved_ahead: Floats
    """The largest mean number of them a step, over any number of steps."""
    share: Floats
    """The part of the cluster that it takes: of the resource of which it takes the largest part."""
    fits: Floats
    """1: it can be given."""
    restores: Floats
    """1: the job then has no more workers than it has now."""


@dataclass(frozen=True, slots=True, eq=False)
class Inputs:
    """What the network takes, float32."""

    jobs: Inputs32
    """(..., jobs, len(JOB_FEATURES))."""
    options: Inputs32
    """(..., jobs, options, len(OPTION_FEATURES))."""
    cluster: Inputs32
    """(..., len(CLUSTER_FEATURES))."""
    present: Inputs32
    """(..., jobs): 1 for a job, 0 for padding."""


def inputs(jobs: JobQuantities, options: OptionQuantities, free: Floats, present: Floats) -> Inputs:
    """Scale what is known, none of which is NaN.

    `free`, (...): the free part of the cluster; `present`, (..., jobs): 0 for padding.
    """
    number = np.maximum(1.0, present.sum(-1))
    many = number[..., None]
    known = jobs.known > 0
    seen = np.stack(
        [
            np.log2(1 + jobs.workers) / 4,
            jobs.workers / np.maximum(1, jobs.most_workers),
            np.log2(1 + jobs.servers) / 4,
            jobs.servers / np.maximum(1, jobs.most_servers),
            np.log2(1 + jobs.held) / 4,
            np.log1p(jobs.share * many),
            _moments(jobs.age),
            np.where(known, _moments(jobs.left), 0),
            np.where(known, _moments(jobs.best_left), 0),
            jobs.known,
            jobs.done,
        ],
        axis=-1,
    )
    part = options.share * many[..., None]
    by_share = _moments(options.saved_ahead / np.maximum(part, 1e-6))
    offered = np.stack(
        [
            np.where(known[..., None], options.gain, 0),
            np.where(known[..., None], options.gain_ahead, 0),
            np.where(known[..., None], _moments(options.saved), 0),
            np.where(known[..., None], _moments(options.saved_ahead), 0),
            np.where(known[..., None], by_share, 0),
            np.log1p(part),
            np.where(options.fits > 0, options.share / np.maximum(free[..., None, None], 1e-9), 1.0),
            options.restores,
        ],
        axis=-1,
    )
    dearest = np.where(present > 0, options.share.max(-1), 0).sum(-1)
    cluster = np.stack(
        [
            free,
            np.log1p(number) / 4,
            np.log1p(1 / np.maximum(dearest, 1e-9)) / 4,
            np.where(present > 0, jobs.workers > 0, False).sum(-1) / number,
        ],
        axis=-1,
    )
    return Inputs(
        jobs=_bounded(seen * present[..., None]),
        options=_bounded(offered * present[..., None, None]),
        cluster=_bounded(cluster),
        present=present.astype(np.float32),
    )


def _moments(seconds: Floats) -> Floats:
    """Return signed logarithms of seconds, of which there are `MOST_SECONDS` at most."""
    finite = np.clip(seconds, -MOST_SECONDS, MOST_SECONDS)
    return np.sign(finite) * np.log1p(np.abs(finite) / MOMENT_SECONDS) / _SCALE


def _bounded(values: Floats) -> Inputs32:
    return np.clip(values, -MOST, MOST).astype(np.float32)
