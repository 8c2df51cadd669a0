"""Deepening as a growth operation, and the reconstruction of a deepened model from its description."""

from __future__ import annotations

from typing import Literal, Self

from torch import nn
from torch.optim import Optimizer

from espalier_core.growth.architecture import Architecture
from espalier_core.types.advice import Action
from espalier_core.types.job import Insertion
from espalier_trainer.net2net.block.step import BlockAdded, blocks_of
from espalier_trainer.net2net.deepening.deepen import deepen
from espalier_trainer.net2net.deepening.insertion import is_pointwise
from espalier_trainer.net2net.deepening.trial import checked_insertion_points
from espalier_trainer.net2net.history import GrowthStep, Traced, check_equal, replay
from espalier_trainer.net2net.modules import ExampleInput
from espalier_trainer.net2net.optimizer import grow_optimizer


class Deepened(GrowthStep):
    """One `deepen`."""

    kind: Literal["Deepened"] = "Deepened"
    point: str
    insertion: Insertion = Insertion.EXACT
    pointwise: bool | None = None
    """Whether a new convolution mixes channels only; None: measured, as by `deepen`."""

    @classmethod
    def described(cls, traced: Traced, architecture: Architecture, before: Architecture | None) -> Architecture:
        """Return the description with its growth points; see `GrowthStep.described`."""
        settled = (
            None if before is None else {point.id: is_pointwise(point.insertion) for point in before.growth_points}
        )
        places = checked_insertion_points(traced.model, traced.graph, traced.example_input, settled).found
        points = tuple(place.point(traced.insertion) for place in places)
        return architecture.model_copy(update={"growth_points": points})

    @classmethod
    def planned(cls, action: Action, architecture: Architecture, insertion: Insertion, seed: int) -> Self:
        """Return the `deepen` at the action's growth point."""
        point = next((one for one in architecture.growth_points if one.id == action.target), None)
        return cls(
            point=str(action.target),
            insertion=insertion,
            pointwise=None if point is None else is_pointwise(point.insertion),
        )

    @property
    def action(self) -> Action:
        """`Deepen` with the growth point."""
        return Action.deepen(self.point)

    def again(self, model: nn.Module, example_input: ExampleInput) -> nn.Module:
        """Return the grown copy; raises `GrowthError` as `deepen` does."""
        return deepen(model, self.point, example_input, self.insertion, pointwise=self.pointwise)

    def grown(self, model: nn.Module, optimizer: Optimizer, example_input: ExampleInput) -> tuple[nn.Module, Optimizer]:
        """Return the grown copy and its optimizer; see `GrowthStep.grown`."""
        deeper = self.again(model, example_input)
        return deeper, grow_optimizer(optimizer, model, deeper)


def rebuild(model: nn.Module, architecture: Architecture, example_input: ExampleInput) -> nn.Module:
    """Return a copy of `model`, the result of the original constructor, with the layers and blocks of `architecture`.

    The state dict of the model described by `architecture` loads into the copy strictly; until then the new layers
    are identities. Raises `GrowthError` with the first layer that differs if `model` is not the starting model of
    that description.
    """
    deeper = replay(model, history_of(architecture), example_input)
    check_equal(deeper, architecture, example_input)
    return deeper


def history_of(architecture: Architecture) -> tuple[Deepened | BlockAdded, ...]:
    """Return the steps in a description that only added layers, point by point: their original order is unknown.

    Blocks that hold grown layers were copied after these were grown, others before.
    """
    layers = {layer.name: layer for layer in architecture.layers}

    def step(point: str, block: str) -> Deepened:
        normed = f"{block}.norm" in layers
        inserted = [layers[name] for name in (f"{block}.conv", f"{block}.linear") if name in layers]
        return Deepened(
            point=point,
            insertion=Insertion.IDENTITY_BATCH_NORM if normed else Insertion.EXACT,
            pointwise=is_pointwise(inserted),
        )

    deepened = tuple(
        step(point.id, f"{point.block}.{index}") for point in architecture.growth_points for index in range(point.grown)
    )
    blocks, late = blocks_of(architecture)
    return (*deepened, *blocks) if late else (*blocks, *deepened)
