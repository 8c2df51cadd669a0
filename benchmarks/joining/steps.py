"""When training steps ended, as a process writes it down, and what is read off that. Needs no torch."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Final

FOLLOWING: Final = 10
"""Steps after a change that still belong to it: the first of a new group may be slow."""


@dataclass(frozen=True, slots=True)
class Step:
    """One optimizer step; `number` counts those that the weights have taken."""

    ended: float
    """Seconds of the monotonic clock, which all processes of a machine share."""
    number: int
    world: int
    """Workers that took it."""
    batches: int
    """Taken from the epoch."""
    grown: int = 0
    """Growths before it."""

    @classmethod
    def parsed(cls, line: str) -> Step:
        """Read a line of a log."""
        ended, *numbers = line.split()
        return cls(float(ended), *map(int, numbers))


class StepLog:
    """Appends steps to a file: a write of some µs each, so that a process that is killed has left all."""

    def __init__(self, path: Path) -> None:
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def ended(self, number: int, world: int, batches: int, grown: int = 0) -> None:
        """Write down a step that has just ended."""
        step = Step(time.monotonic(), number, world, batches, grown)
        os.write(self._handle, (" ".join(map(str, astuple(step))) + "\n").encode())


class Steps(list[Step]):
    """The steps of a log, as far as it was read."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path, self._read = path, 0

    def look(self) -> Steps:
        """Read what has come since; half a line waits for its end."""
        if self._path.exists():
            with self._path.open("rb") as log:
                log.seek(self._read)
                whole, newline, _ = log.read().rpartition(b"\n")
            self._read += len(whole) + len(newline)
            self.extend(Step.parsed(line) for line in whole.decode().splitlines())
        return self


def first_of(steps: Sequence[Step], world: int, after: int, grown: int | None = None) -> int | None:
    """Return the index of the first step from `after` on with this number of workers (and growths), if there is one.

    Only once the steps that still belong to the change have followed.
    """
    for place in range(after, len(steps) - FOLLOWING):
        if steps[place].world == world and grown in (None, steps[place].grown):
            return place
    return None


def gap(steps: Sequence[Step], place: int) -> float:
    """Return the seconds between the ends of the step before and of this one."""
    return steps[place].ended - steps[place - 1].ended


def pause(steps: Sequence[Step], place: int) -> float:
    """Return the longest gap of a change whose first step is at `place`."""
    return max(gap(steps, each) for each in range(place, place + FOLLOWING + 1))


def redone(steps: Sequence[Step], place: int) -> int:
    """Return how many steps before `place` are taken again from there on."""
    return steps[place - 1].number + 1 - steps[place].number


def usual(steps: Sequence[Step], first: int, last: int) -> float:
    """Return the median gap of the steps from `first` to `last`, which is not included."""
    return statistics.median(gap(steps, place) for place in range(max(1, first), last))


def samples_a_second(steps: Sequence[Step], first: int, count: int, batch_size: int) -> float:
    """Return the examples trained on in a second of the `count` steps from `first` on."""
    taken = sum(step.batches for step in steps[first : first + count])
    return taken * batch_size / (steps[first + count - 1].ended - steps[first - 1].ended)
