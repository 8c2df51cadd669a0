"""The gains of more workers and servers for a job, computed once from its speed at each number of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from espalier_lab.scheduling.learned.description import Floats

STEPS: Final = {"worker": (0, 1), "server": (1, 0), "both": (1, 1)}
"""Additional servers and workers of each option."""
LARGEST_GAIN: Final = 3.0
"""Largest logarithm of speeds, for a job that does not train yet."""


@dataclass(frozen=True, slots=True, eq=False)
class OptionGains:
    """The gain of each option at each number of servers and workers; of shape (..., servers + 1, workers + 1, options).

    The leading dimensions are those of the given speeds.
    """

    seconds: Floats
    """(..., servers + 1, workers + 1): seconds of one unit of work; infinite where it does not train."""
    gain: Floats
    """Logarithm of the speed afterwards over the speed before."""
    gain_ahead: Floats
    """Maximum mean gain per step, over any number of steps beginning with this one."""
    saved: Floats
    """Saved seconds of a unit of work; infinite where it does not train yet."""
    saved_ahead: Floats
    """Maximum mean saving per step, as for `gain_ahead`."""


def gains(seconds: Floats, options: Sequence[str]) -> OptionGains:
    """Return the gains of options from the `seconds`, (..., servers + 1, workers + 1), of a unit of work.

    Infinite seconds: it does not train with these numbers. NaN: it cannot have them.
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
        with np.errstate(invalid="ignore"):  # infinite minus infinite, where neither trains
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
            # One at a time, unless each step is one of both.
            steps = max(more_servers, more_workers) if option == "both" else more_servers + more_workers
            _raise(found.gain_ahead[place], gain / steps)
            _raise(found.saved_ahead[place], less / steps)
    return found


def _raise(values: Floats, others: Floats) -> None:
    """Replace values by larger others; NaN is never larger."""
    np.fmax(values, others, out=values)
