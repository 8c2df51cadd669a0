"""Detects workers that slow the others down, and how long to exclude them. Pure: the caller passes all times."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

FACTOR: Final = 5.0
STEPS: Final = 20
"""A member that is FACTOR times slower than the others for STEPS steps in a row is a straggler."""
PAUSE_SECONDS: Final = 60.0
"""An excluded straggler may join again after this time, which doubles each time: it was slow, not broken."""
MAX_DROPS: Final = 3
"""After this number of exclusions it stays excluded, as each return costs `STEPS` slow steps and two pauses."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """How often a worker was excluded, and until when it is."""

    times: int
    until: float


@dataclass(frozen=True, slots=True)
class Speeds:
    """What is known of the members' speed."""

    slow: str | None = None
    """The straggler of the last step."""
    steps: int = 0
    """Its number of consecutive steps as the straggler."""
    dropped: Mapping[str, Dropped] = field(default_factory=dict)

    def out(self, now: float) -> frozenset[str]:
        """Return the workers that are excluded at `now`."""
        return frozenset(worker for worker, each in self.dropped.items() if now < each.until)

    def drops(self, worker: str) -> int:
        """Return how often `worker` was excluded."""
        found = self.dropped.get(worker)
        return 0 if found is None else found.times

    def changed(self) -> Speeds:
        """Return the state after a change of members, which ends the current run of slow steps."""
        return replace(self, slow=None, steps=0)

    def dropping(self, worker: str, now: float) -> Speeds:
        """Return the state after `worker` is excluded at `now`."""
        times = self.drops(worker) + 1
        until = float("inf") if times >= MAX_DROPS else now + PAUSE_SECONDS * 2 ** (times - 1)
        return Speeds(dropped={**self.dropped, worker: Dropped(times, until)})


def straggler(seconds: Sequence[float], factor: float) -> int | None:
    """Return the member whose `seconds` of computing are `factor` times the median of the others', the slowest one."""
    if len(seconds) < 2:
        return None
    slowest = max(range(len(seconds)), key=seconds.__getitem__)
    others = sorted(value for member, value in enumerate(seconds) if member != slowest)
    return slowest if seconds[slowest] > factor * others[len(others) // 2] else None


def observed(speeds: Speeds, workers: Sequence[str], seconds: Sequence[float]) -> tuple[Speeds, str | None]:
    """Return the state after a step in which `workers` computed for `seconds`, and the worker found to be a straggler.

    A straggler is reported once, until the members change.
    """
    rank = straggler(seconds, FACTOR)
    slow = None if rank is None else workers[rank]
    steps = speeds.steps + 1 if slow is not None and slow == speeds.slow else int(slow is not None)
    return replace(speeds, slow=slow, steps=steps), slow if steps == STEPS else None


def described(name: str, rank: int, seconds: Sequence[float], pause: float, times: int) -> str:
    """Return a warning of the straggler `name`, whose `seconds` of a step are those at `rank`.

    `pause`: for how long it is excluded (0: it is not, inf: for good), now for the `times`-th time.
    """
    others = sorted(each for place, each in enumerate(seconds) if place != rank)
    what = "all wait for it at each step"
    if math.isinf(pause):
        what = f"it is excluded for good, as it was {times - 1} times before"
    elif pause:
        what = f"it is excluded for {pause:.0f} s"
    return f"{name} computes {seconds[rank]:.3g} s a step, the others {others[len(others) // 2]:.3g} s; {what}"
