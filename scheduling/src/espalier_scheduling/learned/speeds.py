"""What more workers and servers gain a job, worked out once from its speed at each number of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from espalier_scheduling.learned.description import Floats

STEPS: Final = {"worker": (0, 1), "server": (1, 0), "both": (1, 1)}
"""By option: servers and workers more."""
LARGEST_GAIN: Final = 3.0
"""Of a logarithm of speeds: that of a job that does not train yet."""


@dataclass(frozen=True, slots=True, eq=False)
class Gains:
    """What each option gains at each number of servers and workers; of shape (servers + 1, workers + 1, options)."""

    seconds: Floats
    """(servers + 1, workers + 1): of one unit of work; infinite where it does not train."""
    gain: Floats
    """Logarithm of speed after over speed before."""
    gain_ahead: Floats
    """The largest mean of it a step, over any number of steps the first of which is this one."""
    saved: Floats
    """Seconds of a unit of work that are saved; infinite where it does not train yet."""
    saved_ahead: Floats
    """The largest mean of it a step, as `gain_ahead`."""


def gains(seconds: Floats, options: Sequence[str]) -> Gains:
    """Return what options gain, from `seconds`, (servers + 1, workers + 1), of a unit of work with those numbers.

    Infinite seconds: it does not train with them.
    """
    servers, workers = (axis.ravel() for axis in np.indices(seconds.shape))
    flat = seconds.ravel()
    more_servers, more_workers = servers[None, :] - servers[:, None], workers[None, :] - workers[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.clip(np.log(flat)[:, None] - np.log(flat)[None, :], -LARGEST_GAIN, LARGEST_GAIN)
        less = flat[:, None] - flat[None, :]
    neither = np.isinf(flat)[:, None] & np.isinf(flat)[None, :]
    logs[neither], less[neither] = 0.0, 0.0
    found: list[tuple[Floats, Floats, Floats, Floats]] = []
    for option in options:
        least_servers, least_workers = STEPS[option]
        leads = (more_servers >= least_servers) & (more_workers >= least_workers)
        # One at a time, except where each step is one of both.
        together = np.maximum(more_servers, more_workers) if option == "both" else more_servers + more_workers
        steps = np.maximum(1, together)
        here = (more_servers == least_servers) & (more_workers == least_workers)
        found.append(
            (
                np.where(here, logs, -LARGEST_GAIN).max(1),
                np.where(leads, logs / steps, -LARGEST_GAIN).max(1),
                np.where(here, less, -np.inf).max(1),
                np.where(leads, less / steps, -np.inf).max(1),
            )
        )
    gain, gain_ahead, saved, saved_ahead = (
        np.stack(columns, axis=-1).reshape(*seconds.shape, len(options)) for columns in zip(*found, strict=True)
    )
    return Gains(seconds, gain, gain_ahead, saved, saved_ahead)
