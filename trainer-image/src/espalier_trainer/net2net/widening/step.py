"""Widening as a growth operation: one `widen`."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field
from torch import nn
from torch.optim import Optimizer

from espalier_core.growth.architecture import Architecture
from espalier_core.growth.channel_groups import Channels
from espalier_core.growth.widen import WIDEN
from espalier_core.types.advice import Action
from espalier_core.types.job import Insertion
from espalier_trainer.net2net.deepening.insertion import is_pointwise
from espalier_trainer.net2net.deepening.points import find_insertion_points
from espalier_trainer.net2net.history import GrowthStep, Traced
from espalier_trainer.net2net.modules import ExampleInput
from espalier_trainer.net2net.widening.description import channels_of, insertion_channels
from espalier_trainer.net2net.widening.groups import find_groups
from espalier_trainer.net2net.widening.optimizer import widen_optimizer
from espalier_trainer.net2net.widening.trial import tried_groups
from espalier_trainer.net2net.widening.widen import plan_widening, widen, widened


class Widened(GrowthStep):
    """One `widen`."""

    kind: Literal["Widened"] = "Widened"
    group: str
    width: int = Field(gt=0)
    seed: int

    @classmethod
    def described(cls, traced: Traced, architecture: Architecture, before: Architecture | None) -> Architecture:
        """Return the description with its groups of channels, also those of what growth points insert.

        Each group is tried on values, which takes a hundred times as long, unless `before` lists those that passed.
        Raises `GrowthError` if the model cannot be run on random values.
        """
        model, graph = traced.model, traced.graph
        if graph.data_dependent:
            channels = Channels()
        elif before is None:
            channels = channels_of(model, graph, tried_groups(model, graph, traced.example_input))
        else:
            only = {group.id for group in before.channel_groups}
            channels = channels_of(model, graph, find_groups(model, graph), only)
        blocks = {place.id: place.block for place in find_insertion_points(model, graph).found}
        near = {
            point.id: blocks[point.id].without_neighbours() if is_pointwise(point.insertion) else blocks[point.id]
            for point in architecture.growth_points
        }
        points = tuple(
            point.model_copy(update={"channels": insertion_channels(near[point.id].variant(traced.insertion))})
            for point in architecture.growth_points
        )
        return architecture.model_copy(update={"growth_points": points, "channels": channels})

    @classmethod
    def planned(cls, action: Action, architecture: Architecture, insertion: Insertion, seed: int) -> Self:
        """Return the `widen` of the action's group; `seed` determines which channels are copied."""
        group = str(action.target)
        return cls(group=group, width=WIDEN.new_width(architecture, group, action.width), seed=seed)

    @property
    def action(self) -> Action:
        """`Widen` with group and width."""
        return Action.widen(self.group, self.width)

    def again(self, model: nn.Module, example_input: ExampleInput) -> nn.Module:
        """Return the grown copy; raises `GrowthError` as `widen` does."""
        return widen(model, self.group, self.width, example_input, seed=self.seed)

    def grown(self, model: nn.Module, optimizer: Optimizer, example_input: ExampleInput) -> tuple[nn.Module, Optimizer]:
        """Return the grown copy and its optimizer; see `GrowthStep.grown`."""
        plan = plan_widening(model, self.group, self.width, example_input, seed=self.seed)
        wider = widened(model, plan)
        return wider, widen_optimizer(optimizer, model, wider, plan)
