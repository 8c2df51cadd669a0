"""Growth points of a model, their sizes, and refusals elsewhere: the output of `espalier points`."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn

from espalier_core.growth.architecture import WEIGHT_OPERATORS, Architecture, GrowthError, Layer
from espalier_core.growth.block import ADD_BLOCK, owner_of
from espalier_core.growth.deepen import DEEPEN
from espalier_core.growth.widen import WIDEN
from espalier_core.types.job import Insertion
from espalier_trainer.measuring.gradients import settle
from espalier_trainer.net2net.block.points import add_block, tried_places
from espalier_trainer.net2net.block.trial import block_point
from espalier_trainer.net2net.blocks import base_class
from espalier_trainer.net2net.deepening.deepen import deepen, insertion_points
from espalier_trainer.net2net.description import describe
from espalier_trainer.net2net.modules import ExampleInput, as_arguments, copied, remembering, tensors_in, unwatched
from espalier_trainer.net2net.refusals import Refusal
from espalier_trainer.net2net.trace.tracing import trace
from espalier_trainer.net2net.widening.trial import tried_groups
from espalier_trainer.net2net.widening.widen import widen


@dataclass(frozen=True, slots=True)
class Spot:
    """One place where a model can grow."""

    operation: str
    id: str
    kind: str
    """Operator of the repeated layer, class of the block, or `channels`."""
    layer: str
    """Layer after whose output the new ones are inserted; for a group, the first that makes its channels."""
    depth: int
    """Number of layers with weights that one growth adds."""
    parameters: int
    """Number of trainable scalars that one growth adds; for a group, that doubling it adds."""
    step_seconds: float | None
    """Additional seconds of a forward and backward pass on the example; None where not measured."""
    insertions: tuple[str, ...]
    exact: tuple[str, ...]
    """Insertions that keep the outputs in eval and in train mode."""
    width: int | None = None
    """Number of channels of a group."""
    multiple_of: int | None = None
    layers: tuple[str, ...] = ()
    """Layers that carry the channels of a group."""


@dataclass(frozen=True, slots=True)
class Survey:
    """Growth points, groups and refusals of a model."""

    depth: int
    parameters: int
    step_seconds: float | None
    points: tuple[Spot, ...]
    groups: tuple[Spot, ...]
    refused: tuple[tuple[str, Refusal], ...]
    """Refusals, each with the name of the refused operation."""


def survey(model: nn.Module, example_input: ExampleInput, *, pairs: int = 5, wide: bool = True) -> Survey:
    """Return the survey of `model`; the model is not changed.

    Step times are medians over pairs of steps of the model and of the grown model, one after the other; with `pairs` 0
    none are measured. Raises `GrowthError` where the model cannot be run on the example.
    """
    clock = _Clock(model, example_input, pairs)
    with remembering(model, example_input):
        architecture = describe(model, example_input, operations=[WIDEN.name] if wide else ())
        blocks, refused_blocks = _blocks(model, example_input, architecture, clock)
        points, refused = _points(model, example_input, clock)
        groups, unwidened = _groups(model, example_input, architecture, clock) if wide else ([], [])
    return Survey(
        depth=architecture.depth,
        parameters=architecture.parameters,
        step_seconds=clock.alone(),
        points=(*blocks, *points),
        groups=tuple(groups),
        refused=(*refused_blocks, *refused, *unwidened),
    )


_Found = tuple[list[Spot], list[tuple[str, Refusal]]]


def _points(model: nn.Module, example_input: ExampleInput, clock: _Clock) -> _Found:
    """Return the places where a layer can be added, and the refusals of others."""
    places = insertion_points(model, example_input)
    spots = []
    for place in places.found:
        added = place.point(Insertion.EXACT).insertion
        normed = place.block.norm is not None
        spots.append(
            Spot(
                operation=DEEPEN.name,
                id=place.id,
                kind=place.block.operator,
                layer=place.after,
                depth=_depth(added),
                parameters=_parameters(added),
                step_seconds=clock.slower(partial(deepen, model, place.id, example_input)),
                insertions=tuple(one for one in Insertion if not one.whole and one.normed <= normed),
                exact=(Insertion.EXACT,),
            )
        )
    return spots, [(DEEPEN.name, one) for one in places.refused.values()]


def _blocks(model: nn.Module, example_input: ExampleInput, architecture: Architecture, clock: _Clock) -> _Found:
    """Return the places where a block can be added, exactly or not, and the refusals of exact ones."""
    graph = trace(model, example_input)
    exact = tried_places(model, graph, example_input)
    scaled = tried_places(model, graph, example_input, whole=True)
    closed, halved = {one.id for one in exact.found}, {one.id for one in scaled.found}
    spots = []
    for place in (*exact.found, *(one for one in scaled.found if one.id not in closed)):
        insertion = Insertion.EXACT if place.id in closed else Insertion.SCALED
        copies = block_point(place, whole=insertion is Insertion.SCALED).copied
        added = tuple(layer for layer in architecture.layers if owner_of(layer.name, copies))
        keeps = (Insertion.EXACT,) if place.id in closed else ()
        spots.append(
            Spot(
                operation=ADD_BLOCK.name,
                id=place.id,
                kind=base_class(model.get_submodule(place.id)).__name__,
                layer=place.gives[-1],
                depth=_depth(added),
                parameters=_parameters(added),
                step_seconds=clock.slower(partial(add_block, model, place.id, example_input, insertion)),
                insertions=(*keeps, *((one for one in Insertion if one.whole) if place.id in halved else ())),
                exact=(*keeps, *((Insertion.UNFOLD,) if place.id in halved else ())),
            )
        )
    return spots, [(ADD_BLOCK.name, one) for one in exact.refused]


def _groups(model: nn.Module, example_input: ExampleInput, architecture: Architecture, clock: _Clock) -> _Found:
    """Return the groups of channels, and the refusals of layers whose channels are in none."""
    spots = [
        Spot(
            operation=WIDEN.name,
            id=group.id,
            kind="channels",
            layer=group.id,
            depth=0,
            parameters=int(seen.sizes[2]),
            step_seconds=clock.slower(partial(widen, model, group.id, 2 * group.width, example_input, seed=0)),
            insertions=(),
            exact=(),
            width=group.width,
            multiple_of=group.multiple_of,
            layers=tuple(group.carriers),
        )
        for group, seen in zip(architecture.channel_groups, WIDEN.seen(architecture), strict=True)
    ]
    refused = tried_groups(model, trace(model, example_input), example_input).refused
    return spots, [(WIDEN.name, one) for one in refused.values()]


def _parameters(layers: tuple[Layer, ...]) -> int:
    return sum(layer.parameters for layer in layers)


def _depth(layers: tuple[Layer, ...]) -> int:
    return sum(layer.operator in WEIGHT_OPERATORS for layer in layers)


class _Clock:
    """Compares the seconds of a forward and backward pass of grown models with those of the model."""

    def __init__(self, model: nn.Module, example_input: ExampleInput, pairs: int) -> None:
        self._model, self._example, self._pairs = model, example_input, pairs
        self._base: nn.Module | None = None
        self._times: list[float] = []

    def slower(self, grow: Callable[[], nn.Module]) -> float | None:
        if not self._pairs:
            return None
        base = self._copy()
        grown = unwatched(grow())
        _seconds(grown, self._example)  # the first pass is slower than those after it
        pairs = []
        for _ in range(self._pairs):
            before = _seconds(base, self._example)
            pairs.append(_seconds(grown, self._example) - before)
            self._times.append(before)
        return statistics.median(pairs)

    def alone(self) -> float | None:
        """Return the seconds of a pass of the model itself."""
        if self._pairs and not self._times:
            base = self._copy()
            self._times = [_seconds(base, self._example) for _ in range(self._pairs)]
        return statistics.median(self._times) if self._times else None

    def _copy(self) -> nn.Module:
        if self._base is None:
            self._base = unwatched(copied(self._model))
            _seconds(self._base, self._example)
        return self._base


def _seconds(model: nn.Module, example_input: ExampleInput) -> float:
    """Return the seconds of one forward and backward pass; in train mode where the example allows that."""
    args, kwargs = as_arguments(example_input)
    started = time.perf_counter()
    result: Any = model(*args, **kwargs)
    loss = sum(leaf.square().sum() for leaf in tensors_in(result) if leaf.is_floating_point())
    if isinstance(loss, Tensor) and loss.requires_grad:
        loss.backward()  # type: ignore[no-untyped-call]
    if isinstance(loss, Tensor):
        settle(loss.device)
    seconds = time.perf_counter() - started
    model.zero_grad(set_to_none=True)
    return seconds


def example_of(model: nn.Module) -> ExampleInput:
    """Return the example input that a model carries; raise `GrowthError` where it carries none.

    It is the attribute `example_input`, Lightning's `example_input_array`, or Hugging Face's `dummy_inputs`.
    """
    for name in ("example_input", "example_input_array", "dummy_inputs"):
        found = getattr(model, name, None)
        if isinstance(found, Tensor | tuple | dict):
            return found
    raise GrowthError(
        f"{type(model).__name__} has no example input: name a function that returns one with --example, or set the "
        "model's attribute `example_input` to a batch of two as its forward takes it"
    )
