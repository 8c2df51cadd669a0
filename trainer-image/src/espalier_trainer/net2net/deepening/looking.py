"""Measures how far insertions would look, and keeps them from looking where the model may not.

All new places get their insertions with random values, and `reach` compares on what the outputs then depend. Where an
output would depend on more than it may, the insertion is pointwise: it mixes channels, and no positions. Where that
fails, too (a layer whose masked weights say what may depend on what), the place is refused.

This needs the model to run on random values and to pass gradients to its input; where it does not, insertions are as
`alignment` derives them from the padding.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn

from espalier_core.causes import in_one_line
from espalier_core.types.job import Insertion
from espalier_trainer.net2net import randomness
from espalier_trainer.net2net.blocks import STACK, GrownStack, attach, base_class
from espalier_trainer.net2net.deepening.insertion import build
from espalier_trainer.net2net.deepening.points import InsertionPoint, InsertionPoints
from espalier_trainer.net2net.modules import ExampleInput, copied, failing, held, undisturbed
from espalier_trainer.net2net.probe import Sample, perturbed, samples, scatter
from espalier_trainer.net2net.reach import forbidden
from espalier_trainer.net2net.trace.tracing import Traces

logger = logging.getLogger(__name__)


def looking_no_further(
    model: nn.Module, both: Traces, places: InsertionPoints, example_input: ExampleInput
) -> InsertionPoints:
    """Return the places with insertions after which no output depends on what it may not, and refuse the others."""
    new = [place for place in places.found if not place.grown]
    if not new or any(tensor.is_meta for _, tensor in held(model, "_parameters")):
        return places
    # Batch norm and dropout apart, most models execute the same in both modes, and in eval mode examples stay apart.
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

    The weights are the model's own: a gradient that is not 0 proves a dependence with any. So most classifiers need no
    copy in float64, whose weights take most of the time to draw.
    """
    # Whatever the user's forward raises on random values: the other ways of running it decide.
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
    """Return what says of places what their insertions would look at; None where that cannot be measured."""
    # Whatever the user's forward raises on random values, or in float64: then there is nothing to compare.
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
            f"a new layer there would look at what the model keeps from its outputs: {found}; "
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
    """Return a copy without what growth has added, so that the same places look the same before and after."""
    trial = copied(model)
    for host in list(trial.modules()):
        if isinstance(host._modules.get(STACK), GrownStack):
            del host._modules[STACK]
            host.__class__ = base_class(host)
    return trial
