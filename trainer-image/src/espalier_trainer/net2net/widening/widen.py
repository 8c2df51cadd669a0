"""Net2WiderNet on a model: a new model with more channels in one group and the same outputs (Chen et al. 2016).

    groups = widening_groups(model, example_input)
    wider = widen(model, groups[0], 2 * groups[0].width, example_input, seed=7)

The optimizer for the wider model keeps the state of the old one. The gradient of a copied incoming weight is the old
gradient times the copy's share; that of an outgoing weight is unchanged. So first moments of incoming weights are
multiplied by the share, second moments by its square, and moments of outgoing weights are copied. This is exact where
the moments depend on the gradient alone. It is approximate for weight decay inside a momentum, and for norms that take
a mean over the channels.

`Widened` is this growth operation as a step of a history.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Self

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.optim import Optimizer, RMSprop

from espalier_core.growth.architecture import Architecture, GrowthError
from espalier_core.growth.channel_groups import Channels
from espalier_core.growth.widen import WIDEN
from espalier_core.types.advice import Action
from espalier_core.types.job import Insertion
from espalier_trainer.net2net.deepening.insertion import is_pointwise
from espalier_trainer.net2net.deepening.points import find_insertion_points
from espalier_trainer.net2net.history import GrowthStep, Traced
from espalier_trainer.net2net.modules import ExampleInput, copied
from espalier_trainer.net2net.optimizer import grow_optimizer
from espalier_trainer.net2net.refusals import Refusal
from espalier_trainer.net2net.trace.tracing import trace, traces
from espalier_trainer.net2net.widening.description import channels_of, insertion_channels
from espalier_trainer.net2net.widening.groups import Replication, WideningGroup, apply_in_place, edited, find_groups
from espalier_trainer.net2net.widening.spaces import Edit
from espalier_trainer.net2net.widening.trial import PerturbedModel, executes_alike, tried_groups
from espalier_trainer.optimizers.averaging import AVERAGE


@dataclass(frozen=True)
class Widening:
    """One group with its new channels: everything needed to widen both a model and its optimizer."""

    group: WideningGroup
    replication: Replication


def widening_groups(model: nn.Module, example_input: ExampleInput) -> tuple[WideningGroup, ...]:
    """Return the groups of channels of `model` that can be widened, in execution order. Each of them was tried.

    A trial widens with random weights and inputs of the example's shape, and compares the outputs. Raises `GrowthError`
    if the model cannot be run on the example, or if its control flow depends on tensor values.
    """
    return tried_groups(model, trace(model, example_input), example_input).found


def refused_widenings(model: nn.Module, example_input: ExampleInput) -> dict[str, Refusal]:
    """Return the refusal of each layer whose channels cannot be widened: reason, place in the code and remedy."""
    return tried_groups(model, trace(model, example_input), example_input).refused


@torch.inference_mode(False)  # tensors made in that mode could never be trained
def widen(
    model: nn.Module, group: str | WideningGroup, new_width: int, example_input: ExampleInput, *, seed: int
) -> nn.Module:
    """Return a copy of `model` with `new_width` channels in a group; `model` itself is not changed.

    The copy computes the same in eval and in train mode (except for dropout, which drops copies independently). Copies
    of a channel have unequal shares of its outgoing weights, so training separates them. Parameters keep their names;
    pass the optimizer to `widen_optimizer`. A group given by its id is searched for again, and tried on values unless
    the wider model calls the same functions with the same numbers. A group returned by `widening_groups` for this model
    is not tried again.

    Raises `GrowthError` with the layer and the reason if the id is not a group, and for a width that the group cannot
    have.
    """
    return _widened_by_plan(model, group, new_width, example_input, seed)[1]


def plan_widening(
    model: nn.Module, group: str | WideningGroup, new_width: int, example_input: ExampleInput, *, seed: int
) -> Widening:
    """Return the plan of `widen`, for `widened` and `widen_optimizer`; the same for the same seed everywhere."""
    if isinstance(group, WideningGroup):
        return Widening(group, group.replication(new_width, seed))
    return _widened_by_plan(model, group, new_width, example_input, seed)[0]


def _widened_by_plan(
    model: nn.Module, group: str | WideningGroup, new_width: int, example_input: ExampleInput, seed: int
) -> tuple[Widening, nn.Module]:
    if isinstance(group, WideningGroup):
        widening = Widening(group, group.replication(new_width, seed))
        return widening, widened(model, widening)
    graph = trace(model, example_input)
    groups = find_groups(model, graph)
    found = groups.get(group)
    widening = Widening(found, found.replication(new_width, seed))
    wider = widened(model, widening)
    both, replications = traces(model, example_input), {found: widening.replication}
    with both.answering():
        if not executes_alike(wider, both, groups, replications, example_input):
            groups.without(model, PerturbedModel.of(model, example_input).failing([found])).get(group)
    return widening, wider


@torch.inference_mode(False)  # tensors made in that mode could never be trained
def widened(model: nn.Module, widening: Widening) -> nn.Module:
    """Return a copy of `model` widened by the plan; raises `GrowthError` if the plan is for another model."""
    widening.group.check(model)
    shared = {id(tensor) for tensor in [*model.parameters(), *model.buffers()]}
    wider = copied(model, share=True)
    apply_in_place(wider, {widening.group: widening.replication})
    # Unchanged tensors are copied only now: copying before would copy the others twice.
    own: dict[int, Tensor] = {}
    for module in wider.modules():
        held: Any
        for held in (module._parameters, module._buffers):
            for name, tensor in held.items():
                if tensor is not None and id(tensor) in shared:
                    held[name] = own[id(tensor)] = own[id(tensor)] if id(tensor) in own else copy.deepcopy(tensor)
    return wider


_MOMENTS = {
    "exp_avg": 1, "exp_inf": 1, "momentum_buffer": 1, "grad_avg": 1, "prev": 1,
    "exp_avg_sq": 2, "max_exp_avg_sq": 2, "square_avg": 2, "sum": 2,
    "acc_delta": 0, "step_size": 0, "ax": -1, AVERAGE: -1,
}  # fmt: skip
"""Power of the gradient with which each state of torch's optimizers scales; -1 for a parameter's value."""


@torch.inference_mode(False)  # tensors made in that mode could never be trained
def widen_optimizer(
    optimizer: Optimizer,
    old_model: nn.Module,
    new_model: nn.Module,
    widening: Widening,
    *,
    schedulers: Iterable[object] = (),
) -> Optimizer:
    """Return an optimizer like `optimizer` over `new_model`, which is `old_model` widened by the plan.

    Class, groups and their hyperparameters, the order of groups, and step counts stay the same. `optimizer` keeps
    working on `old_model`; `schedulers`, hooks and attributes are handed over as by `grow_optimizer`. Raises
    `GrowthError` for LBFGS and for a state of unknown meaning.
    """
    edits: dict[str, list[Edit]] = {}
    for edit in widening.group.edits:
        for path in edit.paths:
            edits.setdefault(path, []).append(edit)
    return grow_optimizer(
        optimizer,
        old_model,
        new_model,
        {path: partial(_widened, optimizer, widening, mine) for path, mine in edits.items()},
        schedulers=schedulers,
    )


def _widened(optimizer: Optimizer, widening: Widening, edits: list[Edit], key: str, value: Tensor) -> Tensor:
    power = _MOMENTS.get(key)
    if key == "momentum_buffer" and isinstance(optimizer, RMSprop):
        power = 0  # a momentum of gradients divided by their own size
    if power is None:
        raise GrowthError(
            f"{type(optimizer).__name__} has a state {key!r} whose dependence on the gradient is unknown; "
            "build a new optimizer"
        )
    for edit in edits:
        value = edited(value, edit, {widening.group.space: widening.replication}, None if power < 0 else power)
    return value


class Widened(GrowthStep):
    """One `widen`."""

    kind: Literal["Widened"] = "Widened"
    group: str
    width: int = Field(gt=0)
    seed: int

    @classmethod
    def described(cls, traced: Traced, architecture: Architecture, before: Architecture | None) -> Architecture:
        """Return the description with its groups of channels, including those that growth points insert.

        Each group is tried on values, which takes a hundred times as long, unless `before` lists the groups that
        passed. Raises `GrowthError` if the model cannot be run on random values.
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
        """Return the `widen` of the action's group; `seed` determines the channels that are copied."""
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
