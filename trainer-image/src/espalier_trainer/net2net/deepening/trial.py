"""Tries places before they are offered: does the model run as before when their hosts have one more child?

Growth changes a host's class and adds the child `grown`. A forward that iterates over its children, counts them or
reads `type(child)` may then behave differently, which shows only when it runs. The trial runs on a copy that shares the
model's tensors and has its new blocks on the meta device, first for all places together; if that fails, for subsets.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import cast

from torch import Tensor, nn

from espalier_api.architecture import GrowthError
from espalier_api.job import Insertion
from espalier_trainer.net2net.blocks import attach, base_class
from espalier_trainer.net2net.deepening.conditions import RefusedError
from espalier_trainer.net2net.deepening.insertion import build
from espalier_trainer.net2net.deepening.points import InsertionPoint, InsertionPoints, find_insertion_points
from espalier_trainer.net2net.modules import ExampleInput, copied, failing
from espalier_trainer.net2net.trace.graph import Graph
from espalier_trainer.net2net.trace.tracing import trace


def checked_insertion_points(model: nn.Module, graph: Graph, example_input: ExampleInput) -> InsertionPoints:
    """Return the places of `model` that pass the trial; `graph` is its trace on the example."""
    places = find_insertion_points(model, graph)
    # What is grown already has stood it.
    new = [place for place in places.found if not place.grown]
    failed = {place.id: why for place, why in failing(new, partial(_problem, model, graph, example_input))}
    return InsertionPoints(
        found=tuple(place for place in places.found if place.id not in failed),
        refused=places.refused | failed,
    )


def check_insertions(
    model: nn.Module, places: Sequence[InsertionPoint], before: Graph, example_input: ExampleInput
) -> None:
    """Raise `RefusedError` unless `model`, grown at `places`, runs each new block once and the rest as `before`."""
    problem = "behaves differently with one more module in it"
    try:
        after = trace(model, example_input)
    except GrowthError as error:
        after, problem = None, f"fails with one more module in it ({error.__cause__ or error})"
    if (
        after is None
        or any(after.calls.get(place.stack) != 1 or place.stack not in after.stacks for place in places)
        or after.ungrown().operations != before.ungrown().operations
    ):
        hosts = ", ".join(
            f"{place.host!r} ({base_class(model.get_submodule(place.host)).__name__})" for place in places
        )
        raise RefusedError(
            f"growth is inserted after {hosts}, and the model's forward {problem}; give the activation a separate "
            "module, and do not let the forward depend on which modules there are or on their exact class"
        )


def _problem(
    model: nn.Module, graph: Graph, example_input: ExampleInput, places: Sequence[InsertionPoint]
) -> str | None:
    """Return why `places` fail the trial together, None where they do not."""
    try:
        trial = copied(model, share=True)
        for place in places:
            like = cast(Tensor, trial.get_submodule(place.layer).weight) if graph.real else None
            attach(trial.get_submodule(place.host), build(place.block.variant(Insertion.EXACT), like))
        check_insertions(trial, places, graph, example_input)
    except (RefusedError, GrowthError) as reason:
        return str(reason)
    return None
