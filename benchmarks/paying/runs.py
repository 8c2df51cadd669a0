"""The runs of a benchmark, and the file that keeps them, so that one that was stopped continues."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from harness.statistics import Paired, paired

from espalier_api.base import Record
from paying.arms import Arm
from paying.costs import Costs


class Run(Record):
    """One arm with one seed."""

    arm: Arm
    come: float | None
    """The share of the budget at which the GPU arrived; None for an arm without it."""
    seed: int
    accuracy: float
    """On the test split, at the end of the budget."""
    depth: int
    steps: int
    joint_steps: int
    """Of these by two workers."""
    actions: tuple[str, ...] = ()


class Head(Record):
    """What all runs of a file have in common."""

    job: str
    budget_seconds: float
    length: float
    """Share of the budget for which the GPU stays."""
    policy: str
    scaling: str
    costs: Costs


class Runs:
    """All that are done, kept in a file of JSON lines, the head first."""

    def __init__(self, head: Head, path: Path | None) -> None:
        """Read what the file holds; begin it where it is not there. Raises `ValueError` where it is of another job."""
        self.head, self._path = head, path
        self._runs: dict[tuple[Arm, float | None, int], Run] = {}
        if path is None:
            return
        if not path.exists():
            path.write_text(head.model_dump_json() + "\n", encoding="utf-8")
            return
        first, *lines = path.read_text(encoding="utf-8").splitlines()
        if Head.model_validate_json(first) != head:
            raise ValueError(f"{path} holds runs of another job, timeline or cost; name another file")
        for line in lines:
            self._put(Run.model_validate_json(line))

    def __iter__(self) -> Iterator[Run]:
        """Go through them."""
        return iter(self._runs.values())

    def missing(self, wanted: Iterable[tuple[Arm, float | None, int]]) -> list[tuple[Arm, float | None, int]]:
        """Return what of `wanted` is not done yet."""
        return [each for each in wanted if each not in self._runs]

    def add(self, run: Run) -> None:
        """Keep one more, on the disk too."""
        self._put(run)
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(run.model_dump_json() + "\n")
                file.flush()
                os.fsync(file.fileno())

    def accuracy(self, arm: Arm, come: float) -> dict[int, float]:
        """Return the accuracies of an arm by seed, under the timeline that begins at `come`."""
        when = None if arm is Arm.ALONE else come
        return {run.seed: run.accuracy for run in self if run.arm is arm and run.come == when}

    def difference(self, arm: Arm, other: Arm, come: float) -> Paired:
        """Return by how much `arm` ends better than `other`, seed by seed."""
        mine, theirs = self.accuracy(arm, come), self.accuracy(other, come)
        return paired([mine[seed] - theirs[seed] for seed in sorted(mine.keys() & theirs.keys())])

    def _put(self, run: Run) -> None:
        self._runs[run.arm, run.come, run.seed] = run


def kept_costs(path: Path | None) -> Costs | None:
    """Return the costs that a file of runs was begun with, None where there is none."""
    if path is None or not path.exists():
        return None
    with path.open(encoding="utf-8") as file:
        return Head.model_validate_json(file.readline()).costs
