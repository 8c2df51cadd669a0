"""Runs of equal blocks: children of one `nn.Sequential` or `nn.ModuleList`, next to each other, of one class and shape.

Numbered children of another module (`b1`, `b2`) may be a run, too: its forward decides.

A run has at least one block. It is named by the path of its first one. Blocks that growth has added belong to the run
that they continue, and what was grown inside a block does not count: so names are the same before and after any growth.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from torch import nn

from espalier_trainer.net2net.blocks import STACK, GrownStack, InsertedBlock, added, base_class
from espalier_trainer.net2net.trace.operators import is_leaf

FUSED = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)
"""Blocks that a trace sees as one operation: in eval mode torch runs them as one."""


@dataclass(frozen=True, slots=True)
class Run:
    """Equal blocks next to each other in one container."""

    container: str
    keys: tuple[str, ...]
    """Names of the blocks in the container, in order, those that growth added last."""
    grown: int
    """How many of them growth has added."""
    last: bool
    """Nothing comes after them in the container."""
    indexed: bool
    """The container's children may be read by their names, which must stay."""
    listed: bool = True
    """The container is a Sequential or a ModuleList, and no module of another class with numbered children."""

    @property
    def blocks(self) -> tuple[str, ...]:
        """Paths of the blocks."""
        return tuple(map(self._path, self.keys))

    @property
    def id(self) -> str:
        """Path of the first block."""
        return self._path(self.keys[0])

    @property
    def stem_and_number(self) -> tuple[str, int]:
        """What the path of the next block begins with, and the number it ends with.

        At the end of a container names go on: `blocks.3`, `layer_3`. Elsewhere the names of what comes after stay, and
        new blocks are named after the last block of the starting model: `2_added_0`.
        """
        numbered = re.fullmatch(r"(.*?)(\d+)", self.keys[-1])
        if self.last and numbered:
            return self._path(numbered[1]), int(numbered[2]) + 1
        first = self.keys[len(self.keys) - self.grown - 1]
        return self._path(f"{first}_added_"), self.grown

    def _path(self, key: str) -> str:
        return f"{self.container}.{key}" if self.container else key


def candidates(model: nn.Module) -> Iterator[Run]:
    """Yield the runs of modules with parameters that are no single layers, outer containers first."""
    found = [
        (path, module)
        for path, module in model.named_modules()
        if not isinstance(module, GrownStack | InsertedBlock)
        and not is_leaf(module)
        and f".{STACK}." not in f".{path}."
    ]
    for path, container in sorted(found, key=lambda one: one[0].count(".") if one[0] else -1):
        yield from _runs_of(path, container)


def _runs_of(path: str, container: nn.Module) -> Iterator[Run]:
    listed = isinstance(container, nn.Sequential | nn.ModuleList)
    children = [(key, child) for key, child in container.named_children() if key != STACK]
    place = 0
    for signature, group in groupby(children, key=lambda one: _signature(one[1])):
        members = list(group)
        place += len(members)
        named = isinstance(container, nn.ModuleDict) or members[-1][0][-1:].isdecimal()
        if signature is not None and (listed or named):
            yield Run(
                container=path,
                keys=tuple(key for key, _ in members),
                grown=sum(added(block) is not None for _, block in members),
                last=place == len(children),
                indexed=not isinstance(container, nn.Sequential),
                listed=listed,
            )


def _signature(module: nn.Module) -> object:
    """Return what equal blocks have in common; None for what is no block: a layer, a stage, what has no parameters.

    Buffers may differ: a shifted window has a mask.
    """
    if (is_leaf(module) and not isinstance(module, FUSED)) or not any(True for _ in module.parameters()):
        return None
    if _lists_blocks(module):
        return None
    shapes = tuple(
        (name, tuple(tensor.shape)) for name, tensor in module.named_parameters() if f".{STACK}." not in f".{name}."
    )
    return base_class(module), shapes


def _lists_blocks(module: nn.Module) -> bool:
    """Return whether a module is a stage: a sequence of equal blocks, which are what can be repeated, and not it."""
    if type(module).forward is not nn.Sequential.forward or isinstance(module, GrownStack):
        return False
    return any(len(run.keys) > 1 or run.keys == tuple(module._modules) for run in _runs_of("", module))
