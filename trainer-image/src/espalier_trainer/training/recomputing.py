"""Gradient checkpointing: blocks keep their inputs alone, and compute again what the backward pass needs.

Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost" (arXiv 1604.06174).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint


def blocks_of(model: nn.Module) -> tuple[nn.Module, ...]:
    """Return the blocks of a model: modules with children and parameters in a `ModuleList`, the outermost of them.

    A block with a batch norm is none: computed again, it would count its batch twice.
    """
    found: list[nn.Module] = []
    inside: set[nn.Module] = set()
    for module in model.modules():
        if not isinstance(module, nn.ModuleList):
            continue
        for child in module:
            parts = list(child.modules())
            whole = len(parts) > 1 and next(child.parameters(), None) is not None
            if whole and child not in inside and not any(isinstance(part, _BatchNorm) for part in parts):
                found.append(child)
                inside.update(parts)
    return tuple(found)


@contextmanager
def recomputed(model: nn.Module) -> Iterator[None]:
    """Within the context, the blocks of `model` compute their forward pass again in the backward pass."""
    blocks = blocks_of(model)
    for block in blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    try:
        yield
    finally:
        for block in blocks:
            del block.forward
