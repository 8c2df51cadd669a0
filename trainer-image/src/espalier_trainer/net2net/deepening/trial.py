"""Tries places before they are offered.

Growth changes a host's class and adds the child `grown`. A forward that iterates over its children, counts them or
reads `type(child)` may then behave differently, which shows only when it runs. The trial runs on a copy that shares the
model's tensors and has its new blocks on the meta device, first for all places together; if that fails, for subsets.

Then `looking` tries whether outputs would come to depend on what they may not depend on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import cast

from torch import Tensor, nn

from espalier_core.growth.architecture import GrowthError
from espalier_core.types.job import Insertion
from espalier_trainer.net2net.blocks import attach, base_class
from espalier_trainer.net2net.deepening.conditions import RefusedError
from espalier_trainer.net2net.deepening.insertion import build
from espalier_trainer.net2net.deepening.looking import looking_no_further
from espalier_trainer.net2net.deepening.modes import executes, find_in_both_modes
from espalier_trainer.net2net.deepening.points import InsertionPoint, InsertionPoints
from espalier_trainer.net2net.modules import ExampleInput, copied, failing
from espalier_trainer.net2net.remembered import once
from espalier_trainer.net2net.trace.comparing import change
from espalier_trainer.net2net.trace.graph import Graph
from espalier_trainer.net2net.trace.tracing import Traces, trace, traces


def checked_insertion_points(
    model: nn.Module, graph: Graph, example_input: ExampleInput, settled: Mapping[str, bool] | None = None
) -> InsertionPoints:
    """Return the places of `model` that pass the trial; `graph` is its trace on the example.

    `settled` says of all the places that there were before the model grew whether their insertions are pointwise: there
    are no others, and how far they look is not measured again.
    """
    if settled is not None:
        return _checked(model, graph, example_input, settled)
    return once(model, example_input, "points", lambda: _checked(model, graph, example_input, None))


def _checked(
    model: nn.Module, graph: Graph, example_input: ExampleInput, settled: Mapping[str, bool] | None
) -> InsertionPoints:
    both = Traces(graph, trace(model, example_input, training=False))
    with both.answering():
        return _tried(model, both, example_input, settled)


def _tried(
    model: nn.Module, both: Traces, example_input: ExampleInput, settled: Mapping[str, bool] | None
) -> InsertionPoints:
    places = find_in_both_modes(model, both, example_input)
    # What is grown already has stood it.
    new = [place for place in places.found if not place.grown]
    failed = failing(new, partial(_problem, model, both, example_input))
    places = places.without(model, {place.id: why for place, why in failed})
    if settled is None:
        return looking_no_further(model, both, places, example_input)
    found = tuple(
        place.without_neighbours() if settled[place.id] else place for place in places.found if place.id in settled
    )
    return InsertionPoints(found, places.refused)


def check_insertions(
    model: nn.Module, places: Sequence[InsertionPoint], before: Traces, example_input: ExampleInput
) -> None:
    """Raise `RefusedError` unless `model`, grown at `places`, runs each new block once and the rest as `before`."""
    problem = "behaves differently with one more module in it"
    try:
        after = traces(model, example_input)
    except GrowthError as error:
        after, problem = None, f"fails with one more module in it ({error.__cause__ or error})"
    found = None if after is None else change(before, after, lambda: traces(model, example_input))
    if found is not None:
        raise RefusedError.of(found)
    if after is None or not all(
        _runs_as_before(places, one, other)
        for one, other in ((before.training, after.training), (before.evaluation, after.evaluation))
    ):
        hosts = ", ".join(
            f"{place.host!r} ({base_class(model.get_submodule(place.host)).__name__})" for place in places
        )
        raise RefusedError(
            f"growth is inserted after {hosts}, and the model's forward {problem}; give the activation a separate "
            "module, and do not let the forward depend on which modules there are or on their exact class"
        )


def _runs_as_before(places: Sequence[InsertionPoint], before: Graph, after: Graph) -> bool:
    executed = [place for place in places if executes(before, place)]
    return all(after.calls.get(place.stack) == 1 and place.stack in after.stacks for place in executed) and (
        after.ungrown().operations == before.ungrown().operations
    )


def _problem(
    model: nn.Module, both: Traces, example_input: ExampleInput, places: Sequence[InsertionPoint]
) -> RefusedError | None:
    """Return why `places` fail the trial together, None where they do not."""
    try:
        trial = copied(model, share=True)
        real = both.training.real or both.evaluation.real
        for place in places:
            weight = cast(Tensor, trial.get_submodule(place.layer).weight)
            block = build(place.block.variant(Insertion.EXACT), weight if real else None)
            attach(trial.get_submodule(place.host), block.to(weight.dtype))
        check_insertions(trial, places, both, example_input)
    except RefusedError as reason:
        return reason
    except GrowthError as reason:
        return RefusedError(str(reason))
    return None
