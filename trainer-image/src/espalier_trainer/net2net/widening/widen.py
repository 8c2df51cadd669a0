"""Net2WiderNet on a model: a new model with more channels in one group and the same outputs (Chen et al. 2016).

groups = widening_groups(model, example_input)
wider = widen(model, groups[0], 2 * groups[0].width, example_input, seed=7)
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from espalier_trainer.net2net.modules import ExampleInput, copied
from espalier_trainer.net2net.refusals import Refusal
from espalier_trainer.net2net.trace.tracing import trace, traces
from espalier_trainer.net2net.widening.groups import WideningGroup, apply_in_place, find_groups
from espalier_trainer.net2net.widening.replication import Replication
from espalier_trainer.net2net.widening.trial import PerturbedModel, executes_alike, tried_groups


@dataclass(frozen=True)
class Widening:
    """One group and the channels that it gets: all that is needed to widen both a model and its optimizer."""

    group: WideningGroup
    replication: Replication


def widening_groups(model: nn.Module, example_input: ExampleInput) -> tuple[WideningGroup, ...]:
    """Return the groups of channels of `model` that can be widened, in execution order. Each of them was tried.

    A trial widens with random weights and inputs of the example's shape, and compares the outputs. Raises `GrowthError`
    if the model cannot be run on the example, or if its control flow depends on tensor values.
    """
    return tried_groups(model, trace(model, example_input), example_input).found


def refused_widenings(model: nn.Module, example_input: ExampleInput) -> dict[str, Refusal]:
    """Return, for each layer whose channels cannot be widened, why not, where that is decided, and what would help."""
    return tried_groups(model, trace(model, example_input), example_input).refused


@torch.inference_mode(False)  # what is made in that mode could never be trained
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
    """Return what `widen` would do, for `widened` and `widen_optimizer`; the same for the same seed everywhere."""
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


@torch.inference_mode(False)  # what is made in that mode could never be trained
def widened(model: nn.Module, widening: Widening) -> nn.Module:
    """Return a copy of `model` widened by the plan; raises `GrowthError` if the plan is for another model."""
    widening.group.check(model)
    shared = {id(tensor) for tensor in [*model.parameters(), *model.buffers()]}
    wider = copied(model, share=True)
    apply_in_place(wider, {widening.group: widening.replication})
    # Only now are tensors copied that stay as they are: of the others two copies would be made.
    own: dict[int, Tensor] = {}
    for module in wider.modules():
        held: Any
        for held in (module._parameters, module._buffers):
            for name, tensor in held.items():
                if tensor is not None and id(tensor) in shared:
                    held[name] = own[id(tensor)] = own[id(tensor)] if id(tensor) in own else copy.deepcopy(tensor)
    return wider
