"""Batch norm over the examples of all members: `torch.nn.SyncBatchNorm` for Espalier's own groups.

PyTorch's needs a global process group, and CUDA.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


class Summing(Protocol):
    """The part of a group that batch norms need."""

    def all_reduce(self, tensor: Tensor) -> None:
        """Sum `tensor` over all members, in place."""


@contextmanager
def synchronized(module: nn.Module, group: Summing, *, counts: bool = True) -> Iterator[None]:
    """Make all batch norms of `module` that are in train mode compute their statistics over all members' examples.

    Every member has to run the module, as each batch norm takes three or four collectives: two forward, one or two
    backward. A member without examples runs it on arbitrary ones; without `counts` they do not enter the statistics.
    """
    layers = [each for each in module.modules() if isinstance(each, _BatchNorm) and each.training]
    for layer in layers:
        # An attribute of the instance takes precedence over the method of the class; the module keeps its type and
        # names.
        layer.forward = partial(_forward, layer, group, 1.0 if counts else 0.0)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


def _forward(layer: _BatchNorm, group: Summing, weight: float, inputs: Tensor) -> Tensor:
    """Y = (x - E[x]) / sqrt(Var[x] + ε) · γ + β, E and Var over [N, ...] of all members (Ioffe and Szegedy 2015).

    All is computed in at least 32 bits, as 16 cannot hold a channel's count; the outputs have the type of the
    inputs.
    """
    kind, inputs = inputs.dtype, inputs.to(torch.promote_types(inputs.dtype, torch.float32))
    axes = [axis for axis in range(inputs.dim()) if axis != 1]
    shape = [-1 if axis == 1 else 1 for axis in range(inputs.dim())]
    own = inputs.new_full((1,), inputs.numel() / max(1, inputs.shape[1]))
    total = _GroupSum.apply(torch.cat([inputs.sum(axes), own]) * weight, group)
    count = total[-1].detach()
    mean = total[:-1] / count
    centred = inputs - mean.view(shape)
    variance = _GroupSum.apply(centred.square().sum(axes) * weight, group) / count
    outputs: Tensor = centred * torch.rsqrt(variance + layer.eps).view(shape)
    if layer.affine:
        outputs = outputs * layer.weight.view(shape) + layer.bias.view(shape)
    _track(layer, mean.detach(), variance.detach() * (count / (count - 1).clamp_min(1)))
    return outputs.to(kind)


def _track(layer: _BatchNorm, mean: Tensor, variance: Tensor) -> None:
    """Update the running statistics with a batch, as `nn.BatchNorm2d` does."""
    if layer.running_mean is None or layer.running_var is None:
        return
    factor = layer.momentum
    if layer.num_batches_tracked is not None:
        layer.num_batches_tracked.add_(1)
        if factor is None:
            factor = 1.0 / float(layer.num_batches_tracked)
    layer.running_mean.lerp_(mean.to(layer.running_mean.dtype), factor or 0.0)
    layer.running_var.lerp_(variance.to(layer.running_var.dtype), factor or 0.0)


class _GroupSum(torch.autograd.Function):
    """The sum over all members; the gradient flows back to all of them."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: Summing) -> Tensor:
        ctx.group = group
        total = tensor.detach().clone()
        group.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, wanted: Tensor) -> tuple[Tensor, None]:
        total = wanted.contiguous().clone()
        ctx.group.all_reduce(total)
        return total, None
