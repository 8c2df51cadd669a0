"""Net2DeeperNet on a model: a new model with one more block and the same outputs (Chen et al. 2016, section 2.3).

`Deepened` is this growth operation as a step of a history.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, Self, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.optim import Optimizer

from espalier_core.growth.architecture import Architecture, GrowthError, GrowthPoint
from espalier_core.types.advice import Action
from espalier_core.types.job import Insertion
from espalier_trainer.net2net.block.step import BlockAdded, blocks_of
from espalier_trainer.net2net.blocks import attach
from espalier_trainer.net2net.deepening.conditions import InsertionRefusedError
from espalier_trainer.net2net.deepening.insertion import build, channel_moments, identity_scale_, is_pointwise
from espalier_trainer.net2net.deepening.points import InsertionPoint, InsertionPoints
from espalier_trainer.net2net.deepening.trial import (
    check_insertions,
    checked_insertion_points,
    find_in_both_modes,
    looking_no_further,
)
from espalier_trainer.net2net.history import GrowthStep, Traced, check_equal, replay
from espalier_trainer.net2net.modules import ExampleInput, as_arguments, copied, held, undisturbed
from espalier_trainer.net2net.optimizer import grow_optimizer
from espalier_trainer.net2net.refusals import Refusal
from espalier_trainer.net2net.trace.graph import Graph
from espalier_trainer.net2net.trace.tracing import Traces, trace, traces


def growth_points(
    model: nn.Module, example_input: ExampleInput, insertion: Insertion = Insertion.EXACT
) -> list[GrowthPoint]:
    """Return the places where `model` can be deepened, in execution order. Each of them was tried.

    A point's id is the path of the layer that growth repeats there, or of the `DeepenBlock` that marks it; it does not
    change while the model grows. Raises `GrowthError` if the model cannot be run on the example, or if its control
    flow depends on tensor values and it has no marks.
    """
    return [place.point(insertion) for place in insertion_points(model, example_input).found]


@torch.inference_mode(False)  # tensors made in that mode could never be trained
def deepen(
    model: nn.Module,
    point_id: str,
    example_input: ExampleInput,
    insertion: Insertion = Insertion.EXACT,
    *,
    pointwise: bool | None = None,
) -> nn.Module:
    """Return a copy of `model` with one more layer at a growth point; `model` itself is not changed.

    With `Insertion.EXACT` the copy computes the same in eval and in train mode, and old parameters get the same
    gradients. The batch-norm insertions add a batch norm where the place has one: `IDENTITY_BATCH_NORM` is exact in
    eval mode only; `CALIBRATED_BATCH_NORM`, calibrated on the example as the model computes it in its present mode,
    is exact in eval mode and near-exact in train mode on batches like the example.

    New modules are named `<host>.grown.<n>.conv|linear|norm|activation`; existing parameters keep their names. Pass the
    optimizer to `grow_optimizer`, because the copy has new parameters. A convolution in reduced precision (TF32 on
    CUDA) rounds the values that pass an identity layer, as it rounds any input.

    A new convolution looks to the sides to which the one before it is padded. Where an output would then depend on an
    entry that it must not depend on (`probe.forbidden`), it is pointwise. This is measured, unless `pointwise` is set.

    Raises `GrowthError` with the layer and the reason if `point_id` is not a growth point.
    """
    grown = copied(model)
    deepen_in_place(grown, point_id, example_input, insertion, pointwise=pointwise)
    return grown


@torch.inference_mode(False)  # tensors made in that mode could never be trained
def deepen_in_place(
    model: nn.Module,
    point_id: str,
    example_input: ExampleInput,
    insertion: Insertion = Insertion.EXACT,
    *,
    pointwise: bool | None = None,
) -> None:
    """Deepen `model` itself, as `deepen` does a copy; after a `GrowthError` it may hold an incomplete block."""
    both = traces(model, example_input)
    with both.answering():
        _deepen(model, both, point_id, example_input, insertion, pointwise)


def _deepen(
    model: nn.Module,
    both: Traces,
    point_id: str,
    example_input: ExampleInput,
    insertion: Insertion,
    pointwise: bool | None,
) -> None:
    places = _judged(model, both.training, find_in_both_modes(model, both, example_input))
    place = places.get(point_id)
    if pointwise is None:
        place = looking_no_further(model, both, replace(places, found=(place,)), example_input).get(point_id)
    elif pointwise:
        place = place.without_neighbours()
    insert(model, place, example_input, insertion)
    try:
        check_insertions(model, [place], both, example_input)
    except InsertionRefusedError as reason:
        where = f"{reason.at}: " if reason.at else ""
        raise GrowthError(f"{point_id!r} cannot be deepened: {where}{reason}") from reason


def refused_deepenings(model: nn.Module, example_input: ExampleInput) -> dict[str, Refusal]:
    """Return the refusal of each layer or mark that is not a growth point: reason, place in the code and remedy.

    Raises `GrowthError` if the model cannot be run on the example.
    """
    return insertion_points(model, example_input).refused


def insertion_points(model: nn.Module, example_input: ExampleInput) -> InsertionPoints:
    """Return the places of `model`; raises `GrowthError` if they cannot be determined."""
    graph = trace(model, example_input)
    return _judged(model, graph, checked_insertion_points(model, graph, example_input))


def _judged(model: nn.Module, graph: Graph, places: InsertionPoints) -> InsertionPoints:
    if graph.data_dependent and not places.found:
        raise GrowthError(
            f"{type(model).__name__} branches on a tensor's values ({graph.data_dependent}), so "
            "its layers cannot be followed; mark the places that may grow with DeepenBlock, or compute both branches "
            "and choose with torch.where"
        )
    return places


def insert(model: nn.Module, place: InsertionPoint, example_input: ExampleInput, insertion: Insertion) -> None:
    """Grow `model` at `place`, in place."""
    host = model.get_submodule(place.host)
    weight = cast(Tensor, model.get_submodule(place.layer).weight)
    block = build(place.block.variant(insertion), weight)
    block.train(host.training)
    attach(host, block, (place.host, place.layer))
    norm = getattr(block, "norm", None)
    if insertion is Insertion.CALIBRATED_BATCH_NORM and isinstance(norm, nn.modules.batchnorm._BatchNorm):
        _calibrate(model, norm, example_input, residual=place.block.residual)


@torch.no_grad()
def _calibrate(
    model: nn.Module, norm: nn.modules.batchnorm._BatchNorm, example_input: ExampleInput, *, residual: bool
) -> None:
    """Make a new batch norm the identity on the example's statistics, computed in the model's current mode."""
    seen: list[Tensor] = []
    watch = norm.register_forward_pre_hook(lambda _module, args: seen.append(args[0].detach()))
    args, kwargs = as_arguments(example_input)
    # Buffers are lent copies: batch norms in train mode move their running statistics.
    buffers: dict[str, Any] = {name: buffer.clone() for name, buffer in held(model, "_buffers")}
    try:
        with undisturbed(model):
            functional_call(model, buffers, args, kwargs, tie_weights=False)
    finally:
        watch.remove()
    mean, variance = channel_moments(seen[0])
    cast(Tensor, norm.running_mean).copy_(mean)
    cast(Tensor, norm.running_var).copy_(variance)
    if not residual:
        identity_scale_(norm.weight, cast(Tensor, norm.running_var), norm.eps)
        norm.bias.copy_(mean)


class Deepened(GrowthStep):
    """One `deepen`."""

    kind: Literal["Deepened"] = "Deepened"
    point: str
    insertion: Insertion = Insertion.EXACT
    pointwise: bool | None = None
    """Whether a new convolution mixes channels only; None to measure it, as `deepen` does."""

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
    """Return the steps in a description with added layers only, point by point: their original order is unknown.

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
