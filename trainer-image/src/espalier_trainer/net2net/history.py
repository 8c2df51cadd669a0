"""The growth steps of a model, in order. They can be replayed on the result of its constructor, by any process.

    history = (Deepened(point="0"), Widened(group="0", width=32, seed=7))
    grown = replay(model, history, example_input)

Order matters: a block repeats the width that its layer has at that step. The same history gives the same model, with
equal weights, in every process. Each growth operation is a package with one kind of `GrowthStep`, listed in `STEPS`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Final, Self

import torch
from pydantic import BeforeValidator, SerializeAsAny, ValidationError
from pydantic_core import PydanticCustomError
from torch import nn
from torch.optim import Optimizer

from espalier_core.base import Record
from espalier_core.files.documents import first_fault
from espalier_core.growth import operation_names
from espalier_core.growth.architecture import Architecture, GrowthError
from espalier_core.registry import Registry, RegistryError
from espalier_core.types.advice import Action
from espalier_core.types.job import Insertion
from espalier_trainer.net2net.modules import ExampleInput, copied
from espalier_trainer.net2net.trace.graph import Graph
from espalier_trainer.net2net.trace.tracing import trace


@dataclass(frozen=True, slots=True)
class Traced:
    """A model, its trace on an example, and the kind of insertion."""

    model: nn.Module
    graph: Graph
    example_input: ExampleInput
    insertion: Insertion


class GrowthStep(Record, ABC):
    """One growth step: a growth operation on a module. Its counterpart for the description is in `espalier_core`.

    A subclass gives `kind` the type `Literal` of one string, stored in checkpoints, with that string as the default.
    """

    kind: str

    @classmethod
    @abstractmethod
    def described(cls, traced: Traced, architecture: Architecture, before: Architecture | None) -> Architecture:
        """Return the description with the operation's targets; each of them can be grown.

        `before` is the description from before the model grew: its targets have been tried, and there are no others.
        Raises `GrowthError` where nothing can be tried on the model.
        """

    @classmethod
    @abstractmethod
    def planned(cls, action: Action, architecture: Architecture, insertion: Insertion, seed: int) -> Self:
        """Return the step that carries out `action` on the model of this description; `seed` seeds random choices."""

    @property
    @abstractmethod
    def action(self) -> Action:
        """The counterpart of the step for a description."""

    @abstractmethod
    def again(self, model: nn.Module, example_input: ExampleInput) -> nn.Module:
        """Return a grown copy of a model that computes the same; raises `GrowthError` where that is impossible."""

    @property
    def gradual(self) -> str:
        """Key of the values that this step moves gradually, '' for none; one step moves them for all with this key."""
        return "" if type(self).advance is GrowthStep.advance else self.model_dump_json()

    def unfolds(self, model: nn.Module) -> bool:
        """Return whether training is still moving `model`, grown by this step, to its final form."""
        return False

    def holds_up(self, model: nn.Module, action: Action) -> bool:
        """Return whether an action has to wait until `model` has its final form; by default, every action."""
        return self.unfolds(model)

    def advance(self, model: nn.Module, used: float) -> None:
        """Move gradual growth, in place, to its position at the used share `used` of the budget."""

    @abstractmethod
    def grown(self, model: nn.Module, optimizer: Optimizer, example_input: ExampleInput) -> tuple[nn.Module, Optimizer]:
        """Return the copy that `again` returns, and an optimizer for it with the state of `optimizer`."""


def gradual(history: Iterable[GrowthStep]) -> tuple[GrowthStep, ...]:
    """Return the steps whose `advance` and `unfolds` must be called, one per key: each call walks all modules."""
    return tuple({step.gradual: step for step in history if step.gradual}.values())


STEPS: Final[Registry[type[GrowthStep]]] = Registry(
    "growth operation on modules",
    "espalier.growth.steps",
    {
        "Deepen": "espalier_trainer.net2net.deepening.deepen:Deepened",
        "Widen": "espalier_trainer.net2net.widening.widen:Widened",
        "AddBlock": "espalier_trainer.net2net.block.step:BlockAdded",
    },
)


@cache
def step_of(operation: str) -> type[GrowthStep]:
    """Return the steps of the operation of this name; raises `GrowthError` where there are none."""
    try:
        return STEPS.load(operation)
    except RegistryError as error:
        raise GrowthError(str(error)) from error


@cache
def package_of(operation: str) -> str:
    """Return name and version of the package that adds an operation; empty for a built-in one."""
    return STEPS.package(operation)


UNREADABLE: Final = "growth_unreadable"
"""Type of pydantic's error for a step of an unknown kind, or written by another version of its kind."""


def _of_kind(value: object) -> object:
    """Parse a step from its JSON object, by its `kind`."""
    if not isinstance(value, dict):
        return value
    known, broken = [], []
    for name in operation_names():  # the built-in ones first: others need not be importable
        try:
            step = step_of(name)
        except GrowthError as error:
            broken.append(f"; {error}")
            continue
        kind = step.model_fields["kind"].default
        if kind == value.get("kind"):
            try:
                return step.model_validate(value)
            except ValidationError as error:
                problem = f"{kind!r} is of another version ({first_fault(error)})"
                raise PydanticCustomError(UNREADABLE, "{problem}", {"problem": problem}) from error
        known.append(kind)
    problem = f"{value.get('kind')!r} is not a known kind of growth; known: {', '.join(known)}{''.join(broken)}"
    raise PydanticCustomError(UNREADABLE, "{problem}", {"problem": problem})


Growth = Annotated[SerializeAsAny[GrowthStep], BeforeValidator(_of_kind)]
"""One growth of any kind; in JSON, `kind` distinguishes them."""


@torch.inference_mode(False)  # tensors made in that mode could never be trained
def replay(model: nn.Module, history: Iterable[GrowthStep], example_input: ExampleInput) -> nn.Module:
    """Return a copy of `model` grown by the steps of the history; it computes the same. `model` is not changed.

    The state dict of the model with this history loads into the copy strictly. Raises `GrowthError` with the layer and
    the reason where a step is impossible: then `model` is not the model that the history began with.
    """
    grown = copied(model)
    for growth in history:
        grown = growth.again(grown, example_input)
    return grown


def check_equal(model: nn.Module, wanted: Architecture, example_input: ExampleInput) -> None:
    """Raise `GrowthError` where layers or edges differ. The next growth's insertions are not compared."""
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
