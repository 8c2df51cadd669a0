"""Net2DeeperNet on a model: a new model with one more block and the same outputs (Chen et al. 2016, section 2.3)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

from espalier_core.growth.architecture import GrowthError, GrowthPoint
from espalier_core.types.job import Insertion
from espalier_trainer.net2net.blocks import attach
from espalier_trainer.net2net.deepening.conditions import RefusedError
from espalier_trainer.net2net.deepening.identity import channel_moments, identity_scale_
from espalier_trainer.net2net.deepening.insertion import build
from espalier_trainer.net2net.deepening.looking import looking_no_further
from espalier_trainer.net2net.deepening.modes import find_in_both_modes
from espalier_trainer.net2net.deepening.points import InsertionPoint, InsertionPoints
from espalier_trainer.net2net.deepening.trial import check_insertions, checked_insertion_points
from espalier_trainer.net2net.modules import ExampleInput, as_arguments, copied, held, undisturbed
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


@torch.inference_mode(False)  # what is made in that mode could never be trained
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

    A new convolution looks to the sides to which the one before it is padded (`alignment`). Where an output would then
    depend on what it may not depend on (`reach`), it is pointwise. This is measured; `pointwise` sets it instead.

    Raises `GrowthError` with the layer and the reason if `point_id` is not a growth point.
    """
    grown = copied(model)
    deepen_in_place(grown, point_id, example_input, insertion, pointwise=pointwise)
    return grown


@torch.inference_mode(False)  # what is made in that mode could never be trained
def deepen_in_place(
    model: nn.Module,
    point_id: str,
    example_input: ExampleInput,
    insertion: Insertion = Insertion.EXACT,
    *,
    pointwise: bool | None = None,
) -> None:
    """Do what `deepen` does, but to `model` itself; after a `GrowthError` the model may hold an incomplete block."""
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
    except RefusedError as reason:
        where = f"{reason.at}: " if reason.at else ""
        raise GrowthError(f"{point_id!r} cannot be deepened: {where}{reason}") from reason


def refused_deepenings(model: nn.Module, example_input: ExampleInput) -> dict[str, Refusal]:
    """Return, for each layer or mark that is no growth point, why not, where that is decided, and what would help.

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
            f"{type(model).__name__} decides by the values of a tensor what it executes ({graph.data_dependent}), so "
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
