"""What is measured of one model: its places, and by how much growing all of them at once changes what it computes."""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from bench.zoo.models import Case, ExampleInput, built
from espalier_core.growth.architecture import GrowthError
from espalier_core.types.job import Insertion
from espalier_trainer.net2net import add_block, deepen, grow_in_place, widen
from espalier_trainer.net2net.block.insertion import add_blocks
from espalier_trainer.net2net.block.points import tried_places
from espalier_trainer.net2net.deepening.deepen import insert, insertion_points
from espalier_trainer.net2net.modules import as_arguments, mode, undisturbed
from espalier_trainer.net2net.probe import WithoutDropout, forbidden, perturbed, samples
from espalier_trainer.net2net.trace.tracing import trace
from espalier_trainer.net2net.widening.groups import Groups
from espalier_trainer.net2net.widening.trial import tried_groups


@dataclass(frozen=True)
class Row:
    """One model's line of the table."""

    library: str
    model: str
    layers: int
    """Places where a layer can be added."""
    blocks: int
    """Runs of blocks that can be continued exactly."""
    scaled: int
    """Further runs that can be doubled, which is not exact."""
    groups: int
    """Groups of channels that can be widened."""
    refused: str
    """The first reason, where there is no place at all."""
    evaluation: float | None
    """Greatest difference of outputs in eval mode, relative to the greatest output."""
    training: float | None
    """The same in train mode without dropout; None where the model cannot run in it, or draws at random."""
    dtype: str
    kept: bool | None
    """Nothing depends on what it did not depend on; None where nothing can be measured."""
    seconds: float
    """Of the processor."""


def measured(case: Case, seed: int = 0) -> Row:
    """Return what is measured of a case; raises `AssertionError` where one growth by name is not what it says."""
    started = time.process_time()
    model = built(case, seed)
    model, example, dtype = _typed(model, case.example(model))
    found = _places(model, example)
    grown = _all_grown(model, example, found)
    kept = None if grown is None else _kept(model, grown, example, causal=case.causal)
    evaluation, training = None, None
    if grown is not None:
        widths = found.groups.found if found.groups is not None else ()
        evaluation, training = _differences(model, grown, example)
        if widths:
            group = random.Random(seed).choice(widths)
            wider = _in_place(model, widen(model, group.id, group.next_width, example, seed=seed))
            more = _differences(model, wider, example)
            evaluation = max(evaluation, more[0])
            training = None if training is None or more[1] is None else max(training, more[1])
        _one_by_name(model, example, found, dtype, random.Random(seed))
    return Row(
        library=case.library,
        model=case.name,
        layers=len(found.layers),
        blocks=len(found.blocks),
        scaled=found.scaled,
        groups=0 if found.groups is None else len(found.groups.found),
        refused="" if found else found.why,
        evaluation=evaluation,
        training=training,
        dtype=dtype,
        kept=kept,
        seconds=time.process_time() - started,
    )


@dataclass(frozen=True)
class _Places:
    layers: tuple[Any, ...]
    blocks: tuple[Any, ...]
    scaled: int
    groups: Groups | None
    why: str

    def __bool__(self) -> bool:
        return bool(self.layers or self.blocks or self.scaled or (self.groups and self.groups.found))


def _places(model: nn.Module, example: ExampleInput) -> _Places:
    why = ""
    layers: tuple[Any, ...] = ()
    groups = None
    try:
        points = insertion_points(model, example)
        layers = points.found
        why = next((one.reason for one in points.refused.values()), "")
    except GrowthError as error:
        why = str(error)
    try:
        graph = trace(model, example)
        exact = tried_places(model, graph, example)
        runs, whole = exact.found, exact.found
        if exact.refused:
            whole = tried_places(model, graph, example, whole=True).found
    except GrowthError as error:
        runs, whole, why = (), (), why or str(error)
    try:
        groups = tried_groups(model, trace(model, example), example)
    except GrowthError as error:
        why = why or str(error)
    scaled = {one.id for one in whole} - {one.id for one in runs}
    return _Places(layers, runs, len(scaled), groups, why)


def _all_grown(model: nn.Module, example: ExampleInput, found: _Places) -> nn.Module | None:
    """Return a copy that is grown at every place for a layer and at every run of blocks; None where there are none."""
    if not (found.layers or found.blocks or (found.groups and found.groups.found)):
        return None
    grown = copy.deepcopy(model)
    for place in found.blocks:
        add_blocks(grown, place, whole=False)
    for place in found.layers:
        insert(grown, place, example, Insertion.EXACT)
    return grown


def _one_by_name(model: nn.Module, example: ExampleInput, found: _Places, dtype: str, draw: random.Random) -> None:
    """Grow one place of each kind as a user does."""
    ways: list[tuple[Sequence[Any], Callable[..., nn.Module]]] = [(found.layers, deepen), (found.blocks, add_block)]
    for places, grow in ways:
        if places:
            grown = _in_place(model, grow(model, draw.choice(places).id, example))
            evaluation, training = _differences(model, grown, example)
            tolerance = 1e-7 if dtype == "float64" else 1e-4
            if not (evaluation <= tolerance and (training or 0.0) <= tolerance):
                raise AssertionError(f"a growth by name changes outputs by {evaluation:.1e} and {training}")


def _in_place(model: nn.Module, grown: nn.Module) -> nn.Module:
    """Return a copy of `model` that became `grown`; raises `AssertionError` unless all its objects are still there."""
    own = copy.deepcopy(model)
    before = _objects(own)
    names = grown.state_dict().keys()
    grow_in_place(own, grown)
    if not before.items() <= _objects(own).items() or own.state_dict().keys() != names:
        raise AssertionError("a growth in place replaces what a script may hold")
    return own


def _objects(model: nn.Module) -> dict[str, int]:
    parts = (model.named_modules, model.named_parameters, model.named_buffers)
    return {name: id(one) for each in parts for name, one in each(remove_duplicate=False)}


def _differences(model: nn.Module, grown: nn.Module, example: ExampleInput) -> tuple[float, float | None]:
    """Return the relative differences in eval and in train mode."""
    evaluation = _apart(_run(model, example, training=False), _run(grown, example, training=False))
    before, again = (_run(model, example, training=True, seed=seed) for seed in (3, 4))
    if before is None or _apart(before, again) > 0:
        return evaluation, None  # batch norm on one value, or something drawn at random
    return evaluation, _apart(before, _run(grown, example, training=True))


def _typed(model: nn.Module, example: ExampleInput) -> tuple[nn.Module, ExampleInput, str]:
    """Return model and example in the greatest type that the model runs in."""
    for dtype in (torch.float64, torch.float32):
        typed = copy.deepcopy(model).to(dtype)
        given = tree_map_only(Tensor, lambda one, to=dtype: one.to(to) if one.is_floating_point() else one, example)
        # Whatever a model raises that has a type written in it: the next type decides.
        try:
            _run(typed, given, training=False)
        except (RuntimeError, TypeError):
            continue
        return typed, given, str(dtype).removeprefix("torch.")
    raise AssertionError("the model runs neither in float64 nor in float32")


def _run(model: nn.Module, example: ExampleInput, *, training: bool, seed: int = 3) -> list[Tensor] | None:
    model = copy.deepcopy(model)
    args, kwargs = as_arguments(example)
    with undisturbed(model), mode(model, training=training), WithoutDropout():
        torch.manual_seed(seed)
        try:
            result = model(*args, **kwargs)
        except ValueError:
            if training:
                return None
            raise
    return [one for one in tree_leaves(result) if isinstance(one, Tensor) and one.is_floating_point()]


def _apart(before: list[Tensor] | None, after: list[Tensor] | None) -> float:
    if before is None or after is None:
        return 0.0
    worst = 0.0
    # A grown model that returns the states of its blocks returns more of them.
    for one, other in zip(before[:1], after[:1], strict=True):
        if one.numel():
            worst = max(worst, ((one - other).abs().max() / one.abs().max().clamp_min(1e-30)).item())
    return worst


def _kept(model: nn.Module, grown: nn.Module, example: ExampleInput, *, causal: bool) -> bool | None:
    """Return whether no output depends on more than before, whatever the weights, new ones too, become."""
    try:
        with undisturbed(model):
            torch.manual_seed(4)
            before = samples(perturbed(model), example, training=False)[:3]
            after = samples(perturbed(grown), example, training=False)[:3]
    # Whatever a model raises on random values, or in float64: then there is nothing to compare.
    except Exception:
        return None
    if not before:
        return None
    if causal and not all(map(_looks_back_only, after)):
        return False
    return forbidden(before, after) is None


def _looks_back_only(sample: Any) -> bool:
    """Return whether an entry of (batch, place, ...) depends on no later place, and on its own example alone."""
    row, place = sample.at[0], sample.at[1]
    for seen in sample.depends:
        if seen.dim() < 3 or seen.shape[1] != sample.shape[1] or seen.shape[0] != sample.shape[0]:
            continue
        others = [index for index in range(seen.shape[0]) if index != row]
        if bool(seen[:, place + 1 :].any()) or bool(seen[others].any()):
            return False
    return True
