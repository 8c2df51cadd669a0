"""From what a person asks for to a collection that can be trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from espalier_api.architecture import Architecture
from espalier_api.channel_groups import ChannelGroup
from espalier_api.growth.deepen import DEEPEN
from espalier_api.job import AdaptiveTrainingJob
from espalier_cli.collect.cost import StepCost, measure_cost, parse_cost
from espalier_cli.collect.training import CollectError, Collection, Time, prepared, usable_device
from espalier_trainer.architecture import describe
from espalier_trainer.data import load_data
from espalier_trainer.models import build_model


@dataclass(frozen=True, slots=True)
class Setting:
    """A collection, and the starting model's description for its table."""

    collection: Collection
    architecture: Architecture


def set_up(
    job: AdaptiveTrainingJob,
    *,
    start_at: float,
    decisions: int,
    time: Time,
    step_cost: str | None,
    known_cost: Callable[[Sequence[str], Sequence[ChannelGroup]], StepCost | None],
    throughput: float,
    device: str,
) -> Setting:
    """Return what is to be collected; measures the cost of steps where neither text nor earlier state has it.

    Raises `CollectError`, `StepCostError` or a `TrainerError` for what cannot be used.
    """
    budget = job.spec.time_budget_seconds
    if start_at >= budget:
        raise CollectError(f"--start-at: {start_at:g} s is not before the end of the budget of {budget:g} s")
    usable_device(device)
    job = prepared(job, decisions, time)
    data = load_data(job.spec.training.dataset)
    example = data.example_input()
    model = build_model(job.spec.training.model, data.classes, example)
    spec = job.spec.adaptation
    if DEEPEN.name not in spec.actions:
        raise CollectError("adaptation.actions: every table has the growth points as actions; allow Deepen too")
    architecture = describe(model, example, spec.insertion, spec.actions)
    points, groups = tuple(point.id for point in architecture.growth_points), architecture.channel_groups
    if not points:
        raise CollectError(f"model {job.spec.training.model.name or job.spec.training.model.entrypoint}: cannot grow")
    cost = None
    if time is Time.VIRTUAL:
        cost = parse_cost(step_cost, points, groups) if step_cost else known_cost(points, groups)
        cost = cost or measure_cost(job, data, points, usable_device(device), groups)
    names = tuple(group.id for group in groups)
    return Setting(Collection(job, points, start_at, decisions, cost, throughput, device, names), architecture)
