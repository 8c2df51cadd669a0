"""Traces of GPUs that come and go: their number over time, of which one is always there."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Final, NamedTuple

MOST_GPUS: Final = 4
SPOT: Final = (
    *((6.500, 12), (6.543, 8), (6.569, 7), (6.601, 6), (6.772, 4), (6.799, 2), (6.923, 12), (6.969, 2), (7.189, 12)),
    *((7.224, 9), (7.357, 11), (7.373, 12), (7.499, 11), (7.530, 10), (7.562, 6), (7.587, 4), (7.612, 3), (7.865, 8)),
    *((7.872, 12), (7.896, 3), (7.938, 12)),
)
"""Hours, and instances that an autoscaling group of 12 spot g4dn.xlarge had (AWS, us-east-1c, 2020-11-21): the 90
minutes with the most changes. From the traces of Bamboo (Thorpe et al., NSDI 2023), github.com/uclasystem/bamboo,
doc/data/aws-spot-instances-g4dn-xlarge-us-east-1c-2020-11-20-1930-to-2020-11-21-2200_scaled.csv."""
SPOT_HOURS: Final = (6.5, 8.0)
RATES: Final = {"minute": 60.0, "twenty": 20.0}
"""Seconds between two changes."""
SECONDS: Final = {"calm": 40.0, "minute": 150.0, "twenty": 90.0, "spot": 100.0}
"""Lengths of the traces."""


class Change(NamedTuple):
    """From a moment on, there is this number of GPUs."""

    second: float
    gpus: int


def trace(name: str, seed: int, length: float = 1.0) -> list[Change]:
    """Return the changes of a trace, in `length` of its time; the first is the beginning.

    Those of `calm` and `spot` are always the same. In the others one GPU comes or goes at a time, as it is drawn.
    """
    return [Change(length * change.second, change.gpus) for change in _whole(name, seed, SECONDS[name])]


def _whole(name: str, seed: int, seconds: float) -> list[Change]:
    if name == "calm":
        return [Change(0.0, MOST_GPUS - 1)]
    if name == "spot":
        first, last = SPOT_HOURS
        scaled = [
            Change((hour - first) / (last - first) * seconds, max(1, round(count * MOST_GPUS / 12)))
            for hour, count in SPOT
        ]
        return [scaled[0], *(now for before, now in pairwise(scaled) if now.gpus != before.gpus)]
    draw, apart = random.Random(f"{name} {seed}"), RATES[name]
    found = [Change(0.0, draw.choice(range(2, MOST_GPUS)))]
    while (second := found[-1].second + apart / (1 if len(found) > 1 else 2)) < seconds:
        possible = [gpus for gpus in (found[-1].gpus - 1, found[-1].gpus + 1) if 1 <= gpus <= MOST_GPUS]
        found.append(Change(second, draw.choice(possible)))
    return found
