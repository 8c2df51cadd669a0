"""Trials of growth points before they are offered.

Growth changes a host's class and adds the child `grown`. A forward that iterates over its children, counts them or
reads `type(child)` may then behave differently, which only running it shows. The trial runs on a copy that shares the
model's tensors and has its new blocks on the meta device, first for all places together; if that fails, for subsets.
Growth must be right in eval mode, too, so the places of both modes are compared.

Then the trial measures how far insertions would look, and prevents them from looking where the model must not. All new
places get insertions with random values, and `probe` compares the dependences of the outputs. Where an output would
depend on more than it may, the insertion is pointwise: it mixes channels only, not positions. Where that fails, too (a
layer whose masked weights restrict the dependences), the place is refused. This needs the model to run on random
values and to pass gradients to its input; otherwise insertions are aligned by the padding (`insertion`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from espalier_core.causes import in_one_line
from espalier_core.growth.architecture import GrowthError
from espalier_core.types.job import Insertion
from espalier_trainer.net2net import randomness
from espalier_trainer.net2net.blocks import STACK, GrownStack, attach, base_class
from espalier_trainer.net2net.deepening.conditions import InsertionRefusedError
from espalier_trainer.net2net.deepening.insertion import build
from espalier_trainer.net2net.deepening.points import InsertionPoint, InsertionPoints, find_insertion_points
from espalier_trainer.net2net.gradients import severed, why_severed
from espalier_trainer.net2net.modules import ExampleInput, copied, failing, held, once, undisturbed
from espalier_trainer.net2net.probe import Sample, forbidden, perturbed, samples, scatter
from espalier_trainer.net2net.refusals import Refusal
from espalier_trainer.net2net.trace.graph import Graph
from espalier_trainer.net2net.trace.tracing import Traces, change, trace, traces

logger = logging.getLogger(__name__)


def checked_insertion_points(
    model: nn.Module, graph: Graph, example_input: ExampleInput, settled: Mapping[str, bool] | None = None
) -> InsertionPoints:
    """Return the places of `model` that pass the trial; `graph` is its trace on the example.

    `settled` maps every place from before the model grew to whether its insertion is pointwise: there are no other
    places, and how far they look is not measured again.
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
    # Places that have grown already passed.
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
    """Raise `InsertionRefusedError` unless `model`, grown at `places`, runs new blocks once, the rest as `before`."""
    problem = "behaves differently with one more module in it"
    try:
        after = traces(model, example_input)
    except GrowthError as error:
        after, problem = None, f"fails with one more module in it ({error.__cause__ or error})"
    found = None if after is None else change(before, after, lambda: traces(model, example_input))
    if found is not None:
        raise InsertionRefusedError.of(found)
    if after is None or not all(
        _runs_as_before(places, one, other)
        for one, other in ((before.training, after.training), (before.evaluation, after.evaluation))
    ):
        hosts = ", ".join(
            f"{place.host!r} ({base_class(model.get_submodule(place.host)).__name__})" for place in places
        )
        raise InsertionRefusedError(
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
) -> InsertionRefusedError | None:
    """Return the reason why `places` fail the trial together; None where they pass."""
    try:
        trial = copied(model, share=True)
        real = both.training.real or both.evaluation.real
        for place in places:
            weight = cast(Tensor, trial.get_submodule(place.layer).weight)
            block = build(place.block.variant(Insertion.EXACT), weight if real else None)
            attach(trial.get_submodule(place.host), block.to(weight.dtype))
        check_insertions(trial, places, both, example_input)
    except InsertionRefusedError as reason:
        return reason
    except GrowthError as reason:
        return InsertionRefusedError(str(reason))
    return None


def find_in_both_modes(model: nn.Module, both: Traces, example_input: ExampleInput) -> InsertionPoints:
    """Return the places of the model in train mode whose new layers learn and are exact in eval mode, too."""
    places = find_insertion_points(model, both.training)
    cut_off = severed(model, both.training, example_input)
    places = places.without(
        model,
        {
            place.id: InsertionRefusedError.of(why_severed(both.training, place.host))
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
    """Return the reason why a place of train mode is not one in eval mode; None if growth is exact there."""
    other = evaluated.get(place.id)
    if other is not None and (other.host, other.block) == (place.host, place.block):
        return None
    if other is None and _a_part(both.evaluation, both.training) and not executes(both.evaluation, place):
        return None  # a head that exists only in training
    known = refused.get(place.id)
    why = f"{place.layer!r} and {place.host!r} are not called one after the other" if known is None else known.reason
    return f"in eval mode, the model executes something else there ({why}); let its forward do the same in both modes"


def executes(graph: Graph, place: InsertionPoint) -> bool:
    """Return whether the layer or the host of a place is called."""
    return bool(graph.calls.get(place.layer) or graph.calls.get(place.host))


def _a_part(evaluation: Graph, training: Graph) -> bool:
    """Return whether the operations of eval mode are a subset of those of train mode."""
    return all(training.operations.get(name) == one for name, one in evaluation.operations.items())


def looking_no_further(
    model: nn.Module, both: Traces, places: InsertionPoints, example_input: ExampleInput
) -> InsertionPoints:
    """Return the places with insertions that add no forbidden dependence to any output, and refuse the others."""
    new = [place for place in places.found if not place.grown]
    if not new or any(tensor.is_meta for _, tensor in held(model, "_parameters")):
        return places
    # Apart from batch norm and dropout, most models execute the same in both modes, and eval mode separates examples.
    modes = (False,) if both.training.operations == both.evaluation.operations else (False, True)
    if _looks_everywhere(model, modes, example_input):
        return places
    for start in (_ungrown, copied):
        problems = _problems(model, start, modes, example_input)
        if problems is not None:
            break
    else:
        return places
    far = {place.id for place, _ in failing(new, problems)}
    near = [place.without_neighbours() for place in new if place.id in far]
    wrong = {place.id: why for place, why in failing(near, problems)}
    found = tuple(place.without_neighbours() if place.id in far else place for place in places.found)
    return replace(places, found=found).without(model, wrong)


def _looks_everywhere(model: nn.Module, modes: Sequence[bool], example_input: ExampleInput) -> bool:
    """Return whether each output depends on everything already, as after a mean over all positions.

    The weights are the model's own: a gradient other than 0 proves a dependence with any weights. So most classifiers
    need no copy in float64, whose random weights take most of the time.
    """
    # The user's forward may raise anything on random values: the other ways to run it decide.
    try:
        with undisturbed(model):
            found = [
                samples(copied(model), example_input, training=training, dtype=_type_of(model)) for training in modes
            ]
    except Exception:
        return False
    return all(samples_ and all(sample.complete for sample in samples_) for samples_ in found)


def _type_of(model: nn.Module) -> torch.dtype:
    types = (one.dtype for _, one in held(model, "_parameters") if one.is_floating_point())
    return next(types, torch.float32)


def _problems(
    model: nn.Module, start: Callable[[nn.Module], nn.Module], modes: Sequence[bool], example_input: ExampleInput
) -> Callable[[Sequence[InsertionPoint]], str | None] | None:
    """Return a check of the entries that insertions would read; None where the dependences cannot be measured."""
    # The user's forward may raise anything on random values, or in float64: then there is nothing to compare.
    try:
        with undisturbed(model):
            randomness.seed_everything(0)
            base = perturbed(start(model))
            before = _dependences(base, modes, example_input)
    except Exception:
        logger.debug("insertions are aligned by their padding: the model fails on random values", exc_info=True)
        return None
    complete = all(sample.complete for samples_ in before for sample in samples_)

    def problem(places: Sequence[InsertionPoint]) -> str | None:
        if complete:
            return None  # every entry depends on everything already
        with undisturbed(model):
            randomness.seed_everything(1)
            trial = copied(base)
            for place in places:
                _insert_random(trial, place)
            try:
                after = _dependences(trial, modes, example_input)
            except Exception as error:
                said = f"{type(error).__name__}: {in_one_line(str(error))}"
                return f"the model fails on random values with one more layer there ({said})"
        found = next((why for one, other in zip(before, after, strict=True) if (why := forbidden(one, other))), None)
        return found and (
            f"a new layer there would read values that the model hides from its outputs: {found}; "
            "grow at another place, or let the model mask after this one"
        )

    return problem


def _dependences(model: nn.Module, modes: Sequence[bool], example_input: ExampleInput) -> list[list[Sample]]:
    return [samples(copied(model), example_input, training=training) for training in modes]


def _insert_random(model: nn.Module, place: InsertionPoint) -> None:
    like = cast(Tensor, model.get_submodule(place.layer).weight)
    block = build(place.block.variant(Insertion.EXACT), like).requires_grad_(False)
    for parameter in block.parameters():
        scatter(parameter, zeros=True)
    host = model.get_submodule(place.host)
    block.train(host.training)
    attach(host, block)


def _ungrown(model: nn.Module) -> nn.Module:
    """Return a copy without the modules added by growth, so that the same places look the same before and after."""
    trial = copied(model)
    for host in list(trial.modules()):
        if isinstance(host._modules.get(STACK), GrownStack):
            del host._modules[STACK]
            host.__class__ = base_class(host)
    return trial
