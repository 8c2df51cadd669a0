"""One run of a collection: from its parent's checkpoint to the next decision, or to the end of the budget."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import torch
from pydantic import Field
from torch import nn

from espalier_core.base import Record
from espalier_core.causes import in_one_line
from espalier_core.growth.architecture import Architecture
from espalier_core.types.advice import Action
from espalier_core.types.job import AdaptiveTrainingJob
from espalier_core.types.report import AdaptationResult, TrainerPhase
from espalier_core.validation.reading import with_spec
from espalier_lab.growth.collect.cost import StepCost
from espalier_lab.growth.collect.plan import CollectionRun, RunPurpose
from espalier_lab.virtual_run import (
    NO_CHECKPOINTS_SECONDS,
    VirtualRun,
    WallScheduler,
    as_built,
    data_of,
    deepened_from_scratch,
    undisturbed,
)
from espalier_lab.virtual_time import ReplicaChange, Scripted, VirtualScheduler
from espalier_trainer.checkpoints.document import Checkpoint
from espalier_trainer.run.growing import Study
from espalier_trainer.run.services import Services


class CollectError(Exception):
    """A table cannot be collected. The message names the run, the reason and the remedy."""


class Time(StrEnum):
    """The meaning of a second of the budget."""

    VIRTUAL = "virtual"
    """A step costs its measured time: the table does not depend on the machine's load."""
    WALL = "wall"


@dataclass(frozen=True, slots=True)
class Collection:
    """The settings of a collection."""

    job: AdaptiveTrainingJob
    """The job as `prepared` returns it."""
    architecture: Architecture
    """Architecture of the starting model."""
    start_at: float
    """Arrival of a GPU, in budget seconds."""
    decisions: int
    cost: StepCost | None
    """Cost of steps; None in wall time."""
    throughput: float
    """Speed-up of steps in the control that has only more throughput."""
    device: str = "cpu"

    @property
    def points(self) -> tuple[str, ...]:
        """The starting model's growth points."""
        return tuple(point.id for point in self.architecture.growth_points)

    @property
    def groups(self) -> tuple[str, ...]:
        """The starting model's groups of channels, if the job widens."""
        return tuple(group.id for group in self.architecture.channel_groups)

    @property
    def actions(self) -> tuple[Action, ...]:
        """The possible actions, in the table's order; the last one does nothing."""
        deeper, wider = map(Action.deepen, self.points), map(Action.widen, self.groups)
        return (*deeper, *wider, Action.nothing())


class RunRecord(Record):
    """The result of a run."""

    key: str
    time_left_s: tuple[float, ...]
    """Time left at its decisions."""
    used_s: float = Field(ge=0)
    """Budget seconds used at its end."""
    steps: int = Field(ge=0)
    """Steps since the beginning of the budget."""
    accuracy: float | None = Field(default=None, ge=0, le=1)
    """Accuracy on the test split, if it trained to the end of the budget."""


def prepared(job: AdaptiveTrainingJob, decisions: int, time: Time) -> AdaptiveTrainingJob:
    """Return the job as its runs train it, with `decisions` consultations and without anything that only costs time."""
    job = with_spec(job, adaptation={"mode": "Auto", "maxAdaptations": decisions})
    if time is Time.VIRTUAL and job.spec.training.schedule.name != "torch:ReduceLROnPlateau":
        return undisturbed(job)
    return with_spec(job, checkpoint={"intervalSeconds": NO_CHECKPOINTS_SECONDS})


def train(collection: Collection, run: CollectionRun, start: Checkpoint | None) -> tuple[RunRecord, Checkpoint | None]:
    """Train one run from its parent's checkpoint; also return its own checkpoint if others continue from it.

    Raise `CollectError` if a decision is not reached or not carried out, or if training fails.
    """
    job, ends = collection.job, run.ends(collection.decisions)
    advisor = Scripted(_script(collection, run))

    def prepare(model: nn.Module) -> nn.Module:
        points = [collection.points[index] for index in run.actions]
        example = data_of(job.spec.training.dataset).example_input()
        return deepened_from_scratch(model, points, example, job.spec.adaptation.described_insertion)

    finished = VirtualRun(
        job=job,
        seed=run.seed,
        services=Services(_scheduler(collection, run), advisor=advisor),
        prepare=prepare if run.kind is RunPurpose.SCRATCH else as_built,
        start=start,
        study=Study(run.kind is RunPurpose.RESTART, None if ends else len(run.actions)),
        device=collection.device,
    ).train()
    result = finished.result
    wanted = TrainerPhase.COMPLETED if ends else TrainerPhase.STOPPED
    # A net from scratch decides nothing, and with its longer epochs it need not reach all the moments.
    asked = {RunPurpose.TRUNK: 0, RunPurpose.EDGE: 1, RunPurpose.SCRATCH: len(advisor.asked)}.get(
        run.kind, collection.decisions
    )
    if result.phase is TrainerPhase.FAILED:
        raise CollectError(f"{run.key}: {result.message}")
    if result.phase is not wanted or len(advisor.asked) != asked:
        raise CollectError(
            f"{run.key}: the budget of {job.spec.time_budget_seconds:g} s ends before all {collection.decisions} "
            "decisions, one an epoch, are made; start earlier, or have fewer decisions"
        )
    if run.kind is RunPurpose.EDGE and result.adaptations[-1].result is AdaptationResult.FAILED:
        raise CollectError(f"{run.key}: {collection.actions[run.actions[-1]]} failed: {result.adaptations[-1].message}")
    record = RunRecord(
        key=run.key,
        time_left_s=tuple(request.time_left_seconds for request in advisor.asked),
        used_s=result.used_seconds,
        steps=result.steps,
        accuracy=result.test_accuracy,
    )
    return record, None if ends else finished.checkpoint


def _script(collection: Collection, run: CollectionRun) -> tuple[Action, ...]:
    if run.kind is RunPurpose.EDGE:
        return tuple(collection.actions[index] for index in run.actions)
    if run.kind is RunPurpose.RESTART:
        return (collection.actions[0],) * collection.decisions
    return ()


def _scheduler(collection: Collection, run: CollectionRun) -> VirtualScheduler:
    budget = collection.job.spec.time_budget_seconds
    base = collection.job.spec.min_replicas
    arrivals = (ReplicaChange(collection.start_at, base + 1),)
    faster = collection.throughput if run.kind is RunPurpose.THROUGHPUT else 1.0
    if collection.cost is None:
        return WallScheduler(budget, lambda _: 0.0, arrivals, base, time_scale=1 / faster)
    cost = collection.cost
    return VirtualScheduler(budget, lambda architecture: cost(architecture) / faster, arrivals, base)


def usable_device(name: str) -> torch.device:
    """Return the device of this name; raise `CollectError` if there is none."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise CollectError(f"--device {name}: {in_one_line(str(error))}") from error
    return device
