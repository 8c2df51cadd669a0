"""Trains what a plan says and is not done yet."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from espalier_cli.collect.plan import Kind, Run, next_run
from espalier_cli.collect.state import WorkFolder
from espalier_cli.collect.training import Collection, RunRecord
from espalier_cli.collect.workers import Workers


class Watcher(Protocol):
    """Receives the progress of a collection."""

    def __call__(self, done: int, total: int, left_seconds: float | None) -> None:
        """Take notice. `left_seconds` is None while nothing is known."""


def collect(
    collection: Collection,
    runs: Sequence[Run],
    folder: WorkFolder,
    parallel: int,
    watcher: Watcher,
    warn: Callable[[str], None],
) -> dict[Run, RunRecord]:
    """Return the records of all runs; what the folder has is not trained again.

    Raises `CollectError` where a run fails. What is done by then stays in the folder.
    """
    records, complaints = folder.done(runs, collection.decisions)
    for complaint in complaints:
        warn(complaint)
    progress = Progress(collection, runs, records)
    watcher(len(records), len(runs), None)
    begun = set(records)
    with Workers(min(parallel, max(1, len(runs) - len(records))), collection, folder) as workers:
        while len(records) < len(runs):
            while workers.idle and (run := next_run(runs, records, begun)) is not None:
                begun.add(run)
                workers.begin(run)
            for run, record in workers.finished():
                folder.keep(run, record)
                records[run] = record
                progress.done(run)
                _forget(run, runs, records, folder)
                watcher(len(records), len(runs), progress.left_seconds())
    return records


def _forget(run: Run, runs: Sequence[Run], records: dict[Run, RunRecord], folder: WorkFolder) -> None:
    """Remove the checkpoint that `run` continued from, once all that continue from it are done."""
    parent = run.parent
    if parent is not None and all(other in records for other in runs if other.parent == parent):
        folder.forget_checkpoint(parent)


@dataclass
class Progress:
    """How long it will take: runs weigh as many budget seconds as they train."""

    collection: Collection
    runs: Sequence[Run]
    records: dict[Run, RunRecord]
    clock: Callable[[], float] = time.monotonic
    _began: float = field(init=False)
    _left: float = field(init=False)
    _done: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        self._began = self.clock()
        self._left = sum(self._weight(run) for run in self.runs if run not in self.records)

    def done(self, run: Run) -> None:
        """Count a run that has been trained."""
        self._done += self._weight(run)
        self._left -= self._weight(run)

    def left_seconds(self) -> float | None:
        """Return the wall seconds left, at the speed so far."""
        return (self.clock() - self._began) * max(0.0, self._left) / self._done if self._done > 0 else None

    def _weight(self, run: Run) -> float:
        budget, start = self.collection.job.spec.time_budget_seconds, self.collection.start_at
        if run.kind is Kind.TRUNK:
            return start
        if run.kind is Kind.SCRATCH:
            return budget
        return budget - start if run.ends(self.collection.decisions) else 0.0
