"""Setup of a collection from a person's options, and training of the unfinished runs of its plan."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from espalier_core.growth.channel_groups import ChannelGroup
from espalier_core.growth.deepen import DEEPEN
from espalier_core.types.job import AdaptiveTrainingJob
from espalier_core.types.task import Task
from espalier_lab.growth.collect.cost import StepCost, measure_cost, parse_cost
from espalier_lab.growth.collect.plan import CollectionRun, RunPurpose, next_run
from espalier_lab.growth.collect.state import WorkFolder
from espalier_lab.growth.collect.training import CollectError, Collection, RunRecord, Time, prepared, usable_device
from espalier_lab.growth.collect.workers import CollectionWorkers
from espalier_trainer.data import load_data
from espalier_trainer.models.zoo import build_model
from espalier_trainer.net2net.description import describe

Watcher = Callable[[int, int, float | None], None]
"""Receives the progress: finished runs, all runs, and the wall seconds left, None if unknown."""


def set_up(
    job: AdaptiveTrainingJob,
    *,
    start_at: float,
    decisions: int,
    time_kind: Time,
    step_cost: str | None,
    known_cost: Callable[[Sequence[str], Sequence[ChannelGroup]], StepCost | None],
    throughput: float,
    device: str,
) -> Collection:
    """Return the collection; measure the cost of steps if neither text nor earlier state has it.

    Raise `CollectError`, `StepCostError` or a `TrainerError` for unusable input.
    """
    budget = job.spec.time_budget_seconds
    if start_at >= budget:
        raise CollectError(f"--start-at: {start_at:g} s is not before the end of the budget of {budget:g} s")
    if (task := job.spec.training.task) is not Task.CLASSIFICATION:
        raise CollectError(f"training.task: is {task}; tables hold accuracies, so only a Classification is collected")
    usable_device(device)
    job = prepared(job, decisions, time_kind)
    data = load_data(job.spec.training.dataset)
    example = data.example_input()
    model = build_model(job.spec.training.model, data.classes, example)
    spec = job.spec.adaptation
    if DEEPEN.name not in spec.actions:
        raise CollectError("adaptation.actions: every table has the growth points as actions; allow Deepen too")
    architecture = describe(model, example, spec.described_insertion, spec.actions)
    points, groups = tuple(point.id for point in architecture.growth_points), architecture.channel_groups
    if not points:
        raise CollectError(f"model {job.spec.training.model.name or job.spec.training.model.entrypoint}: cannot grow")
    cost = None
    if time_kind is Time.VIRTUAL:
        cost = parse_cost(step_cost, points, groups) if step_cost else known_cost(points, groups)
        cost = cost or measure_cost(job, data, points, usable_device(device), groups)
    return Collection(job, architecture, start_at, decisions, cost, throughput, device)


def collect(
    collection: Collection,
    runs: Sequence[CollectionRun],
    folder: WorkFolder,
    parallel: int,
    watcher: Watcher,
    warn: Callable[[str], None],
) -> dict[CollectionRun, RunRecord]:
    """Return the records of all runs; finished runs in the folder are not trained again.

    Raise `CollectError` if a run fails. Runs finished by then stay in the folder.
    """
    records, complaints = folder.done(runs, collection.decisions)
    for complaint in complaints:
        warn(complaint)
    progress = CollectionProgress(collection, runs, records)
    watcher(len(records), len(runs), None)
    begun = set(records)
    with CollectionWorkers(min(parallel, max(1, len(runs) - len(records))), collection, folder) as workers:
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


def _forget(
    run: CollectionRun, runs: Sequence[CollectionRun], records: dict[CollectionRun, RunRecord], folder: WorkFolder
) -> None:
    """Remove the checkpoint that `run` continued from, once all runs that continue from it are done."""
    parent = run.parent
    if parent is not None and all(other in records for other in runs if other.parent == parent):
        folder.forget_checkpoint(parent)


@dataclass
class CollectionProgress:
    """Remaining time of a collection: runs weigh as many budget seconds as they train."""

    collection: Collection
    runs: Sequence[CollectionRun]
    records: dict[CollectionRun, RunRecord]
    clock: Callable[[], float] = time.monotonic
    _began: float = field(init=False)
    _left: float = field(init=False)
    _done: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        self._began = self.clock()
        self._left = sum(self._weight(run) for run in self.runs if run not in self.records)

    def done(self, run: CollectionRun) -> None:
        """Count a trained run."""
        self._done += self._weight(run)
        self._left -= self._weight(run)

    def left_seconds(self) -> float | None:
        """Return the wall seconds left, at the speed so far."""
        return (self.clock() - self._began) * max(0.0, self._left) / self._done if self._done > 0 else None

    def _weight(self, run: CollectionRun) -> float:
        budget, start = self.collection.job.spec.time_budget_seconds, self.collection.start_at
        if run.kind is RunPurpose.TRUNK:
            return start
        if run.kind is RunPurpose.SCRATCH:
            return budget
        return budget - start if run.ends(self.collection.decisions) else 0.0
