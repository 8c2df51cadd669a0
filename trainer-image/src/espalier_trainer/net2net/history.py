"""What was done to a model, in order, so that it can be done again: on its constructor's result, or by another process.

    history = (Deepened(point="0"), Widened(group="0", width=32, seed=7))
    grown = replay(model, history, example_input)

Order matters: a block repeats the width that its layer has by then. The same history makes the same model of equal
weights everywhere. Each growth operation is a room with one kind of `GrowthStep`; `STEPS` is the table of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Final, Self

from pydantic import BeforeValidator, SerializeAsAny
from torch import nn
from torch.optim import Optimizer

from espalier_api.advice import Action
from espalier_api.architecture import Architecture, GrowthError
from espalier_api.base import Record
from espalier_api.growth import operation_names
from espalier_api.job import Insertion
from espalier_api.registry import Registry, RegistryError
from espalier_trainer.net2net.modules import ExampleInput, copied
from espalier_trainer.net2net.trace.graph import Graph
from espalier_trainer.net2net.trace.tracing import trace


@dataclass(frozen=True, slots=True)
class Traced:
    """A model, what it executes on an example, and how layers are inserted into it."""

    model: nn.Module
    graph: Graph
    example_input: ExampleInput
    insertion: Insertion


class GrowthStep(Record, ABC):
    """One growth as it was done: a growth operation on a module. What it does to the description is in the api.

    A subclass gives `kind` the type `Literal` of one text, which checkpoints keep, and that text as the default.
    """

    kind: str

    @classmethod
    @abstractmethod
    def described(cls, traced: Traced, architecture: Architecture, before: Architecture | None) -> Architecture:
        """Return the description with the operation's targets in it; every one of them can be grown.

        `before` is the description from before the model grew: its targets have been tried, and there are no others.
        Raises `GrowthError` where the model has nothing that could be tried.
        """

    @classmethod
    @abstractmethod
    def planned(cls, action: Action, architecture: Architecture, insertion: Insertion, seed: int) -> Self:
        """Return the step that carries out `action` on the model of this description; whatever is drawn, by `seed`."""

    @property
    @abstractmethod
    def action(self) -> Action:
        """What the step does, to be carried out on a description."""

    @abstractmethod
    def again(self, model: nn.Module, example_input: ExampleInput) -> nn.Module:
        """Return the grown copy of a model, which computes the same; raises `GrowthError` where that cannot be."""

    @abstractmethod
    def grown(self, model: nn.Module, optimizer: Optimizer, example_input: ExampleInput) -> tuple[nn.Module, Optimizer]:
        """Return the copy that `again` returns, and an optimizer for it that remembers what `optimizer` knows."""


STEPS: Final[Registry[type[GrowthStep]]] = Registry(
    "growth operation on modules",
    "espalier.growth.steps",
    {
        "Deepen": "espalier_trainer.net2net.deepening.step:Deepened",
        "Widen": "espalier_trainer.net2net.widening.step:Widened",
    },
)


@cache
def step_of(operation: str) -> type[GrowthStep]:
    """Return the steps of the operation of this name; raises `GrowthError` where there are none."""
    try:
        return STEPS.load(operation)
    except RegistryError as error:
        raise GrowthError(str(error)) from error


def _of_kind(value: object) -> object:
    """Read a step as JSON has it, by its `kind`."""
    if not isinstance(value, dict):
        return value
    known = {}
    for name in operation_names():
        step = step_of(name)
        known[step.model_fields["kind"].default] = step
    if value.get("kind") not in known:
        raise ValueError(f"{value.get('kind')!r} is no kind of growth known here; known: {', '.join(known)}")
    return known[value["kind"]].model_validate(value)


Growth = Annotated[SerializeAsAny[GrowthStep], BeforeValidator(_of_kind)]
"""One growth of any kind; in JSON, `kind` distinguishes them."""


def replay(model: nn.Module, history: Iterable[GrowthStep], example_input: ExampleInput) -> nn.Module:
    """Return a copy of `model` grown as the history says; it computes what `model` does, which is not changed.

    The state dict of the model whose history it is loads into it strictly. Raises `GrowthError` where a growth cannot
    be done, naming the layer and the reason: then `model` is not what the history began with.
    """
    grown = copied(model)
    for growth in history:
        grown = growth.again(grown, example_input)
    return grown


def check_equal(model: nn.Module, wanted: Architecture, example_input: ExampleInput) -> None:
    """Raise `GrowthError` where layers or edges differ; what a next growth would add is of no interest here."""
    found = trace(model, example_input).layers()
    for ours, theirs in zip(found, wanted.layers, strict=False):
        if ours != theirs:
            raise GrowthError(
                f"the model is not the one described: layer {theirs.name!r} should be {theirs.operator} "
                f"{theirs.attributes} reading {theirs.inputs}, found {ours.name!r}: {ours.operator} "
                f"{ours.attributes} reading {ours.inputs}; use the constructor and options that the description "
                "was made with"
            )
    if len(found) != len(wanted.layers):
        raise GrowthError(
            f"the model is not the one described: it has {len(found)} layers, the description "
            f"{len(wanted.layers)}; use the constructor and options that the description was made with"
        )
