"""Puts copies of blocks into a model, and closes or scales them.

- Exact: the copy's closing parameters are zero, so it returns what it is given.
- Scaled: the whole run is copied, and the closing parameters of all its blocks, old ones too, are divided by 2, so that
  the copied run adds about as much to its input as the run did. The outputs change.

`torch.nn.Module`s are copied as they are: a block has no constructor that everyone could call.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import nn

from espalier_trainer.net2net.block.counters import count
from espalier_trainer.net2net.block.runs import Run
from espalier_trainer.net2net.blocks import mark_added
from espalier_trainer.net2net.modules import copied

SCALE = 0.5
"""What closing parameters are multiplied by where the run becomes twice as long."""


@dataclass(frozen=True, slots=True)
class Place:
    """A run of blocks that can be continued."""

    run: Run
    reads: tuple[str, ...]
    """For each call: the operation that made what the last block passes on."""
    gives: tuple[str, ...]
    """For each call: the operation that made what the last block returns."""
    first: tuple[str, ...]
    """For each call: the operation that made what the first block of the run passes on."""
    entry: int
    """Which tensor among the arguments of a block that is."""
    closing: tuple[frozenset[str], ...]
    """For each block of the run: the names of its closing parameters within it."""
    exact: bool = True

    @property
    def id(self) -> str:
        """The id of the run."""
        return self.run.id

    def new(self, *, whole: bool) -> dict[str, str]:
        """Return the paths of what the next growth copies, each with that of its copy."""
        stem, number = self.run.stem_and_number
        blocks = self.run.blocks if whole else self.run.blocks[-1:]
        return {block: f"{stem}{number + place}" for place, block in enumerate(blocks)}


def add_blocks(model: nn.Module, place: Place, *, whole: bool, scale: float = SCALE) -> tuple[str, ...]:
    """Continue a run of `model`, in place, by copies of the last block or of all; returns their paths.

    With `whole`, the closing parameters of the run are multiplied by `scale`, else the copy is closed. Raises
    `GrowthError` where a block cannot be copied, or where what counts the blocks cannot be kept consistent.
    """
    new = place.new(whole=whole)
    container = model.get_submodule(place.run.container)
    length = len(place.run.keys)
    after = place.run.keys[-1]
    for original, target in new.items():
        block = copied(model.get_submodule(original))
        mark_added(block, place.entry)
        key = target.rpartition(".")[2]
        _insert(container, after, key, block)
        after = key
    if whole:
        for path, names in zip(place.run.blocks, place.closing, strict=True):
            multiply(model.get_submodule(path), names, scale)
            multiply(model.get_submodule(new[path]), names, scale)
    else:
        multiply(container.get_submodule(after), place.closing[-1], 0.0)
    count(model, place.run.container, length, tuple(new.items()))
    return tuple(new.values())


@torch.no_grad()
def multiply(block: nn.Module, names: Iterable[str], factor: float) -> None:
    """Multiply parameters of a block; by zero also what is not finite."""
    for name in names:
        parameter = block.get_parameter(name)
        parameter.zero_() if factor == 0 else parameter.mul_(factor)


def _insert(container: nn.Module, after: str, key: str, block: nn.Module) -> None:
    """Make `block` the child `key` of a container, next to the child `after`."""
    container.add_module(key, block)
    children: Mapping[str, nn.Module | None] = dict(container._modules)
    container._modules.clear()
    for name, child in children.items():
        if name != key:
            container._modules[name] = child
        if name == after:
            container._modules[key] = block
