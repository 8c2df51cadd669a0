"""Trials of runs of blocks before they are offered.

The first trial, on the meta device, adds one block: the model must run each block once more, and everything else as
before. The second, on values: each new block must return its input, bit for bit, in eval and in train mode. Its weights
are perturbed for that: a block that is closed already (zero-initialised) would hide wrong closing parameters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from espalier_core.causes import in_one_line
from espalier_core.growth.architecture import Architecture, BlockPoint, GrowthError
from espalier_core.growth.block import block_added
from espalier_trainer.net2net.block.insertion import BlockPlace, add_blocks
from espalier_trainer.net2net.modules import ExampleInput, as_arguments, copied, mode, tensors_in, undisturbed
from espalier_trainer.net2net.refusals import RefusalReason
from espalier_trainer.net2net.trace.tracing import Traces, change, traces


def block_point(place: BlockPlace, *, whole: bool) -> BlockPoint:
    """Return a place as the `BlockPoint` of a description."""
    stem, number = place.run.stem_and_number
    return BlockPoint(
        id=place.id,
        copied=tuple(place.new(whole=whole)),
        whole=whole,
        reads=place.first if whole else place.reads,
        gives=place.gives,
        stem=stem,
        number=number,
        grown=place.run.grown,
    )


class MisfitError(GrowthError):
    """The model's forward does not accept another block."""

    def __init__(self, reason: RefusalReason) -> None:
        super().__init__("".join((reason.at, reason.at and ": ", reason.text, "; ", reason.remedy)))
        self.reason = reason


def misfits(
    model: nn.Module, before: Traces, example_input: ExampleInput, places: Sequence[BlockPlace], *, whole: bool
) -> dict[str, MisfitError]:
    """Return the reasons by id of the places where the model's forward does not accept another block.

    Each is tried alone: two lists may fit together that do not fit alone.
    """
    tried = {place.id: _misfit(model, before, example_input, whole, [place]) for place in places}
    return {name: why for name, why in tried.items() if why is not None}


def check_layers(
    grown: nn.Module, before: Traces, example_input: ExampleInput, places: Iterable[BlockPlace], *, whole: bool
) -> None:
    """Raise `MisfitError` unless `grown` runs the layers in the description of `before`, grown at these places."""
    points = tuple(block_point(place, whole=whole) for place in places)
    wanted = Architecture(layers=before.training.layers(), outputs=before.training.outputs, blocks=points)
    for point in points:
        wanted = block_added(wanted, point.id)
    both = traces(grown, example_input)
    if (changed := change(before, both, lambda: traces(grown, example_input))) is not None:
        raise MisfitError(changed)
    after = both.training
    layers = after.layers()
    for found, expected in zip(layers, wanted.layers, strict=False):
        if found != expected:
            raise _off(
                "does not run another block as it runs the last one (expected "
                f"{expected.operator} {expected.name!r} reading {expected.inputs}, found {found.operator} "
                f"{found.name!r} reading {found.inputs})"
            )
    if len(layers) != len(wanted.layers) or after.outputs != wanted.outputs:
        raise _off(f"runs {len(layers)} operations with another block, expected {len(wanted.layers)}")


def _off(what: str) -> MisfitError:
    loop = "let it run all blocks of the list in a loop, each on the output of the one before"
    return MisfitError(RefusalReason(f"the model's forward {what}", loop, ""))


def _misfit(
    model: nn.Module, before: Traces, example_input: ExampleInput, whole: bool, places: Sequence[BlockPlace]
) -> MisfitError | None:
    try:
        trial = _shared(model, places)
        for place in places:
            add_blocks(trial, place, whole=whole)
        check_layers(trial, before, example_input, places, whole=whole)
    except MisfitError as reason:
        return reason
    except GrowthError as reason:
        cause = reason.__cause__
        failed = f"the model's forward fails with one more block ({in_one_line(str(cause))})"
        why = str(reason) if cause is None else failed
        return MisfitError(RefusalReason(why, "let the model's forward take one more block in this list", ""))
    return None


def _shared(model: nn.Module, places: Sequence[BlockPlace]) -> nn.Module:
    """Return a copy that shares the model's tensors, except those of the blocks that growth changes."""
    trial = copied(model, share=True)
    for place in places:
        for block, names in zip(place.run.blocks, place.closing, strict=True):
            module = trial.get_submodule(block)
            for name in names:
                owner, _, own = name.rpartition(".")
                held = module.get_submodule(owner)
                held._parameters[own] = nn.Parameter(module.get_parameter(name).detach().clone())
    return trial


def not_identities(grown: nn.Module, blocks: Mapping[str, int], example_input: ExampleInput) -> dict[str, str]:
    """Return, for each of these blocks that does not return its input, a description of the difference.

    `blocks` gives by path the index, among a block's tensor arguments, of the one that it must return. Both modes are
    tried, train mode where the model runs in it on the example. Batch norms of `grown` move.
    """
    problems: dict[str, str] = {}
    args, kwargs = as_arguments(example_input)
    for training in (False, True):
        with ExitStack() as hooks, undisturbed(grown), mode(grown, training=training):
            for path, entry in blocks.items():
                watch = _Watch(path, entry, "train" if training else "eval", problems)
                module = grown.get_submodule(path)
                hooks.callback(module.register_forward_pre_hook(watch.before, with_kwargs=True).remove)
                hooks.callback(module.register_forward_hook(watch.after).remove)
            try:
                grown(*args, **kwargs)
            except ValueError:
                if not training:
                    raise
    return problems


class _Watch:
    """Hook pair that compares a block's output with a copy of its input."""

    def __init__(self, path: str, entry: int, mode: str, problems: dict[str, str]) -> None:
        self._path, self._entry, self._mode, self._problems = path, entry, mode, problems
        self._given: list[Tensor] = []

    def before(self, _module: nn.Module, args: Any, kwargs: Any) -> None:
        tensors = tensors_in((args, kwargs))
        self._given.append(tensors[self._entry].detach().clone())

    def after(self, _module: nn.Module, _args: Any, result: Any) -> None:
        given = self._given.pop()
        returned = next(iter(tensors_in(result)), given[:0])
        if not torch.equal(returned, given):
            apart = (returned - given).abs().max().item() if returned.shape == given.shape else float("nan")
            self._problems.setdefault(
                self._path,
                f"with its last projections at zero it still changes its input, by up to {apart:.1e} in "
                f"{self._mode} mode",
            )


def with_choice(place: BlockPlace, choice: frozenset[str]) -> BlockPlace:
    """Return the place closed by these parameters in every block."""
    return replace(place, closing=tuple(choice for _ in place.run.keys))
