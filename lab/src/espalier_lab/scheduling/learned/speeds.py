"""What more workers and servers gain a job, worked out once from its speed at each number of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from espalier_lab.scheduling.learned.description import Floats

STEPS: Final = {"worker": (0, 1), "server": (1, 0), "both": (1, 1)}
"""By option: servers and workers more."""
LARGEST_GAIN: Final = 3.0
"""Of a logarithm of speeds: that of a job that does not train yet."""


@dataclass(frozen=True, slots=True, eq=False)
class OptionGains:
    """What each option gains at each number of servers and workers; of shape (..., servers + 1, workers + 1, options).

    The leading dimensions are those of the speeds that were given.
    """

    seconds: Floats
    """(..., servers + 1, workers + 1): of one unit of work; infinite where it does not train."""
    gain: Floats
    """Logarithm of speed after over speed before."""
    gain_ahead: Floats
    """The largest mean of it a step, over any number of steps the first of which is this one."""
    saved: Floats
    """Seconds of a unit of work that are saved; infinite where it does not train yet."""
    saved_ahead: Floats
    """The largest mean of it a step, as `gain_ahead`."""


def gains(seconds: Floats, options: Sequence[str]) -> OptionGains:
    """Return what options gain, from `seconds`, (..., servers + 1, workers + 1), of a unit of work with those numbers.

    Infinite seconds: it does not train with them. NaN: it cannot have them.
    """
    shape = (*seconds.shape, len(options))
    found = OptionGains(
        seconds,
        gain=np.full(shape, -LARGEST_GAIN),
        gain_ahead=np.full(shape, -LARGEST_GAIN),
        saved=np.full(shape, -np.inf),
        saved_ahead=np.full(shape, -np.inf),
    )
    logs = np.log(seconds)
    servers, workers = seconds.shape[-2:]
    for more_servers, more_workers in np.ndindex(servers, workers):
        here = (..., slice(servers - more_servers), slice(workers - more_workers))
        there = (..., slice(more_servers, None), slice(more_workers, None))
        neither = np.isinf(seconds[here]) & np.isinf(seconds[there])
        with np.errstate(invalid="ignore"):  # infinite less infinite, where neither trains
            gain = np.where(neither, 0.0, np.clip(logs[here] - logs[there], -LARGEST_GAIN, LARGEST_GAIN))
            less = np.where(neither, 0.0, seconds[here] - seconds[there])
        for column, option in enumerate(options):
            least = STEPS[option]
            if more_servers < least[0] or more_workers < least[1]:
                continue
            place = (*here, column)
            if (more_servers, more_workers) == least:
                _raise(found.gain[place], gain)
                _raise(found.saved[place], less)
            # One at a time, except where each step is one of both.
            steps = max(more_servers, more_workers) if option == "both" else more_servers + more_workers
            _raise(found.gain_ahead[place], gain / steps)
            _raise(found.saved_ahead[place], less / steps)
    return found


def _raise(values: Floats, others: Floats) -> None:
    """Replace values by others where those are larger; NaN is not."""
    np.fmax(values, others, out=values)
