"""Nets with a run of residual blocks, as people write them by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

ROWS = torch.randn(2, 5, 4, generator=torch.Generator().manual_seed(1))


class Unit(nn.Module):
    """A pre-norm residual block."""

    def __init__(self, layer: Callable[[int, int], nn.Module] = nn.Linear) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.up, self.act, self.down = layer(8, 16), nn.SiLU(), layer(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.act(self.up(self.norm(x))))


class Net(nn.Module):
    """A stem, a list of blocks, a head; `ways` says how the blocks are run."""

    def __init__(self, blocks: nn.Module, run: Callable[[Any, Tensor], Tensor], stem: nn.Module | None = None) -> None:
        super().__init__()
        self.stem = stem or nn.Linear(4, 8)
        self.blocks, self._run = blocks, run
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self._run(self.blocks, functional.relu(self.stem(x))))


class Written(nn.Module):
    """A forward over named layers, as a user writes one."""

    def __init__(self, forward: Callable[..., Tensor], **layers: nn.Module | nn.Parameter) -> None:
        super().__init__()
        for name, layer in layers.items():
            setattr(self, name, layer)
        self._written = forward

    def forward(self, x: Tensor) -> Tensor:
        """Return what the function makes of the module and its input."""
        return self._written(self, x)


def in_turn(blocks: Any, x: Tensor) -> Tensor:
    """Call one block after the other."""
    for block in blocks:
        x = block(x)
    return x
