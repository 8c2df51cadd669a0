"""The grown structure again, from a fresh starting model and the description that was saved with the weights."""

from __future__ import annotations

from collections.abc import Container

from torch import nn

from espalier_api.architecture import Architecture, GrowthError, GrowthPoint
from espalier_api.job import Insertion
from espalier_trainer.net2net.deepening.deepen import insert, places_of
from espalier_trainer.net2net.deepening.points import find_places
from espalier_trainer.net2net.description import architecture_of
from espalier_trainer.net2net.history import Deepened
from espalier_trainer.net2net.modules import ExampleInput, copied
from espalier_trainer.net2net.trace.tracing import trace


def rebuild(model: nn.Module, architecture: Architecture, example_input: ExampleInput) -> nn.Module:
    """Return a copy of `model`, the result of the original constructor, grown as `architecture` says.

    The state dict of the model that `architecture` was made from loads into it strictly; until then the new layers
    are identities. Raises `GrowthError` naming the first layer in which the two differ, where `model` is not the
    starting model of that description.
    """
    grown = copied(model)
    names = {layer.name for layer in architecture.layers}
    if architecture.growth_history:
        places = places_of(grown, example_input)
        for point in architecture.growth_points:
            place = places.get(point.id) if point.grown else None
            for index in range(place.grown if place else 0, point.grown):
                if place is not None:
                    insert(grown, place, example_input, _insertion(point, index, names))
    check_equal(grown, architecture, example_input)
    return grown


def history_of(architecture: Architecture) -> tuple[Deepened, ...]:
    """Return the growth in depth that a description tells of, point by point: in which order is not known."""
    names = {layer.name for layer in architecture.layers}
    return tuple(
        Deepened(point=point.id, insertion=_insertion(point, index, names))
        for point in architecture.growth_points
        for index in range(point.grown)
    )


def _insertion(point: GrowthPoint, index: int, names: Container[str]) -> Insertion:
    normed = f"{point.block}.{index}.norm" in names
    return Insertion.IDENTITY_BATCH_NORM if normed else Insertion.EXACT


def check_equal(model: nn.Module, wanted: Architecture, example_input: ExampleInput) -> None:
    """Raise `GrowthError` where layers or edges differ; what a next growth would add is of no interest here."""
    graph = trace(model, example_input)
    found = architecture_of(graph, find_places(model, graph), Insertion.EXACT)
    for ours, theirs in zip(found.layers, wanted.layers, strict=False):
        if ours != theirs:
            raise GrowthError(
                f"the model is not the one described: layer {theirs.name!r} should be {theirs.operator} "
                f"{theirs.attributes} reading {theirs.inputs}, found {ours.name!r}: {ours.operator} "
                f"{ours.attributes} reading {ours.inputs}; use the constructor and options that the description "
                "was made with"
            )
    if len(found.layers) != len(wanted.layers):
        raise GrowthError(
            f"the model is not the one described: it has {len(found.layers)} layers, the description "
            f"{len(wanted.layers)}; use the constructor and options that the description was made with"
        )
