"""Whether a policy has learned from models like that of a request."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Self

from espalier_core.base import Record
from espalier_core.growth.architecture import Architecture, layered
from espalier_core.types.advice import AdviceRequest, Familiarity
from espalier_core.types.task import Task

SLACK: Final = 2.0
"""Factor by which a size may lie outside of those that were learned from."""


class Sizes(Record):
    """The least and the most of a size."""

    least: float
    most: float

    def outside(self, value: float) -> bool:
        """Return whether a value lies outside by more than `SLACK`."""
        return not self.least / SLACK <= value <= self.most * SLACK


class Domain(Record):
    """The models that a policy has learned from."""

    task: Task
    operators: tuple[str, ...]
    """Kinds of layers, sorted."""
    sizes: dict[str, Sizes]
    """By name: parameters, layers with weights, steps left."""

    @classmethod
    def of(cls, task: Task, architectures: Iterable[Architecture], steps_left: Sequence[float]) -> Self:
        """Return the domain of these models; `steps_left` are those of their decisions, where known."""
        models = [layered(one) for one in architectures]
        found = {
            "parameters": [float(model.parameters) for model in models],
            "layers": [float(model.depth) for model in models],
            "steps left": list(steps_left),
        }
        return cls(
            task=task,
            operators=tuple(sorted({layer.operator for model in models for layer in model.layers})),
            sizes={name: Sizes(least=min(each), most=max(each)) for name, each in found.items() if each},
        )


def familiarity(domain: Domain | None, request: AdviceRequest) -> Familiarity | None:
    """Return how a request compares with a domain; None if that of a policy for classifications is not known."""
    if domain is None:
        known = request.task is Task.CLASSIFICATION
        return None if known else Familiarity(known=False, outside=(f"task {request.task}",))
    outside = [] if request.task is domain.task else [f"task {request.task}"]
    model = layered(request.architecture)
    # How a model is written decides which operators without weights it has (a reshape, dropout): they say little of it.
    weighted = {one.operator for one in model.layers if one.parameters}
    outside += [f"operator {name}" for name in sorted(weighted - {*domain.operators})]
    sizes = {"parameters": float(model.parameters), "layers": float(model.depth), "steps left": steps_left(request)}
    for name, value in sizes.items():
        learned = domain.sizes.get(name)
        if value is not None and learned is not None and learned.outside(value):
            outside.append(f"{name} {value:,.0f} (learned from {learned.least:,.0f} to {learned.most:,.0f})")
    return Familiarity(known=not outside, outside=tuple(outside))


def steps_left(request: AdviceRequest) -> float | None:
    """Return the number of steps that the rest of the budget has, at the speed so far; None where that is unknown."""
    used = request.time_budget_seconds - request.time_left_seconds
    if request.progress.step == 0 or used <= 0:
        return None
    return request.progress.step * request.time_left_seconds / used
