"""Compares the places of a model's two modes: growth must be right in eval mode, too."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from espalier_trainer.net2net.deepening.conditions import RefusedError
from espalier_trainer.net2net.deepening.points import InsertionPoint, InsertionPoints, find_insertion_points
from espalier_trainer.net2net.gradients import severed, why_severed
from espalier_trainer.net2net.modules import ExampleInput
from espalier_trainer.net2net.refusals import Refusal
from espalier_trainer.net2net.trace.graph import Graph
from espalier_trainer.net2net.trace.tracing import Traces


def find_in_both_modes(model: nn.Module, both: Traces, example_input: ExampleInput) -> InsertionPoints:
    """Return the places of the model in train mode that learn, and at which growth computes the same in eval mode."""
    places = find_insertion_points(model, both.training)
    cut_off = severed(model, both.training, example_input)
    places = places.without(
        model,
        {
            place.id: RefusedError.of(why_severed(both.training, place.host))
            for place in places.found
            if place.host in cut_off
        },
    )
    if both.training.operations == both.evaluation.operations:
        return places
    evaluated = find_insertion_points(model, both.evaluation)
    failed = {
        place.id: reason
        for place in places.found
        if (reason := _difference(place, {one.id: one for one in evaluated.found}, evaluated.refused, both)) is not None
    }
    return places.without(model, failed)


def _difference(
    place: InsertionPoint, evaluated: Mapping[str, InsertionPoint], refused: Mapping[str, Refusal], both: Traces
) -> str | None:
    """Return why a place of train mode is none in eval mode, None if growth is exact there."""
    other = evaluated.get(place.id)
    if other is not None and (other.host, other.block) == (place.host, place.block):
        return None
    if other is None and _a_part(both.evaluation, both.training) and not executes(both.evaluation, place):
        return None  # a head that only training has: in eval mode nothing of it is left
    known = refused.get(place.id)
    why = f"{place.layer!r} and {place.host!r} are not called one after the other" if known is None else known.reason
    return f"in eval mode, the model executes something else there ({why}); let its forward do the same in both modes"


def executes(graph: Graph, place: InsertionPoint) -> bool:
    """Return whether the layer or the host of a place is called."""
    return bool(graph.calls.get(place.layer) or graph.calls.get(place.host))


def _a_part(evaluation: Graph, training: Graph) -> bool:
    """Return whether in eval mode a model executes nothing but a part of what it executes in train mode."""
    return all(training.operations.get(name) == one for name, one in evaluation.operations.items())
