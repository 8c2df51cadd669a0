"""The function of a removed block, folded into the layer that reads it: exact if it is linear, otherwise least squares.

A block `g` was before a reader `A`: the larger model computes `A g(x)`, the smaller can compute `A' x`. Where g is
linear on what comes (a linear layer, or a 1x1 convolution, whose activation cuts nothing off) `A' = A g` is the same
function. Else no `A'` is; the least-squares one over a few batches is the nearest, and where `g` is linear it is that
very product, so one calculation does both:

    min over A'   sum over rows   | A' x - A g(x) |²  +  ridge | A' - A |²

rows being examples, or their patches for a convolution (its padding included, so borders are right too).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from espalier_trainer.net2net.blocks import STACK
from espalier_trainer.net2net.modules import mode

RIDGE: Final = 1e-6
"""Share of the mean square of the reader's inputs: directions that the batches do not determine stay as they were."""
ROWS: Final = 4
"""Minimum ratio of rows to unknowns: with fewer rows the fit would memorise them."""
WIDEST: Final = 4096
"""Maximum number of a reader's inputs, kernel positions counted; beyond it, solving takes too long."""
_CHUNK: Final = 1 << 22
"""Maximum number of values of patches in memory at once."""


Norm = nn.modules.batchnorm._BatchNorm
"""Batch norms, whose running statistics `recalibrate` estimates again for a model that lost layers."""


@torch.no_grad()
def fold(smaller: nn.Module, larger: nn.Module, readers: Sequence[str], batches: Sequence[Tensor]) -> tuple[str, ...]:
    """Fit the readers of `smaller`, in place, to their outputs in `larger`; returns those that were fitted.

    Linear layers and ungrouped Conv2d with zero padding can be fitted; others are left to distillation. Both models run
    in eval mode, once for each reader (the fit of one reader is the input of the next).
    """
    fitted = []
    with mode(smaller, training=False), mode(larger, training=False):
        for name in readers:
            layer, original = smaller.get_submodule(name), larger.get_submodule(name)
            if not isinstance(layer, nn.Linear | nn.Conv2d) or not isinstance(original, nn.Linear | nn.Conv2d):
                continue
            if not _can_fit(layer):
                continue
            if _fit(layer, original, smaller, larger, batches):
                fitted.append(name)
    return tuple(fitted)


def _can_fit(layer: nn.Linear | nn.Conv2d) -> bool:
    if isinstance(layer, nn.Conv2d) and (
        layer.groups != 1 or isinstance(layer.padding, str) or layer.padding_mode != "zeros"
    ):
        return False
    return layer.weight[0].numel() < WIDEST


def _fit(
    layer: nn.Linear | nn.Conv2d,
    original: nn.Linear | nn.Conv2d,
    smaller: nn.Module,
    larger: nn.Module,
    batches: Sequence[Tensor],
) -> bool:
    """Fit one layer; False if the batches have too few rows for it."""
    size = layer.weight[0].numel()
    count = 0
    weight = layer.weight.reshape(layer.weight.shape[0], size).double()
    gram = weight.new_zeros(size + 1, size + 1)
    moment = weight.new_zeros(size + 1, weight.shape[0])
    bias = layer.bias.double() if layer.bias is not None else weight.new_zeros(weight.shape[0])
    for inputs in batches:
        given, wanted = _input(smaller, layer, inputs), _output(larger, original, inputs)
        positions = wanted[0, 0].numel() if wanted.dim() > 2 else 1
        piece = max(1, _CHUNK // (positions * size))
        for part, aim in zip(torch.split(given, piece), torch.split(wanted, piece), strict=True):
            rows = _rows(layer, part).double()
            target = (aim.flatten(2).transpose(1, 2) if isinstance(layer, nn.Conv2d) else aim).reshape(
                -1, weight.shape[0]
            )
            error = target.double() - rows @ weight.T - bias
            rows = torch.cat([rows, torch.ones_like(rows[:, :1])], 1)
            gram += rows.T @ rows
            moment += rows.T @ error
            count += len(rows)
    if count < ROWS * (size + 1):
        return False
    ridge = RIDGE * gram[:-1, :-1].diagonal().mean().clamp_min(torch.finfo(torch.float32).tiny)
    penalty = torch.full_like(gram[0], float(ridge))
    if layer.bias is None:
        gram, moment, penalty = gram[:-1, :-1], moment[:-1], penalty[:-1]
    change = torch.linalg.solve(gram + penalty.diag(), moment)
    layer.weight += change[:size].T.reshape(layer.weight.shape).to(layer.weight.dtype)
    if layer.bias is not None:
        layer.bias += change[size].to(layer.bias.dtype)
    return True


def _rows(layer: nn.Linear | nn.Conv2d, inputs: Tensor) -> Tensor:
    """Return the inputs of each output position, as rows [outputs, inputs of the layer]."""
    if isinstance(layer, nn.Linear):
        return inputs.reshape(-1, layer.in_features)
    if isinstance(layer.padding, str):
        raise ValueError(f"padding {layer.padding!r} is not a number")
    patches = nn.functional.unfold(inputs, layer.kernel_size, layer.dilation, layer.padding, layer.stride)
    return patches.transpose(1, 2).reshape(-1, patches.shape[1])


def _input(model: nn.Module, layer: nn.Module, inputs: Tensor) -> Tensor:
    """Return the input of `layer` when `model` runs on `inputs`."""
    return _watched(model, inputs, layer.register_forward_pre_hook, lambda args: args[0])


def _output(model: nn.Module, layer: nn.Module, inputs: Tensor) -> Tensor:
    """Return the output of `layer` itself, without the layers grown after it."""
    grown = layer._modules.get(STACK)
    if grown is not None:
        return _input(model, grown, inputs)
    return _watched(model, inputs, layer.register_forward_hook, lambda args: args[1])


def _watched(
    model: nn.Module,
    inputs: Tensor,
    register: Callable[[Callable[..., None]], RemovableHandle],
    pick: Callable[[tuple[Any, ...]], Any],
) -> Tensor:
    seen: list[Any] = []

    def note(_module: nn.Module, *args: Any) -> None:
        seen.append(pick(args))

    watch = register(note)
    try:
        model(inputs)
    finally:
        watch.remove()
    found: Tensor = seen[0][0] if isinstance(seen[0], tuple) else seen[0]
    return found.detach()


@torch.no_grad()
def recalibrate(model: nn.Module, batches: Sequence[Tensor]) -> None:
    """Set running means and variances to the averages over `batches`, in place, as `torch.optim.swa_utils.update_bn`.

    Only batch norms are in train mode meanwhile: no dropout. Weights, modes and momenta are left as they are.
    """
    norms = [module for module in model.modules() if isinstance(module, Norm) and module.track_running_stats]
    if not norms or not batches:
        return
    momenta = {norm: norm.momentum for norm in norms}
    try:
        with mode(model, training=False):
            for norm in norms:
                counted = None if norm.num_batches_tracked is None else norm.num_batches_tracked.clone()
                norm.reset_running_stats()
                if counted is not None and momenta[norm] is not None:
                    norm.num_batches_tracked = torch.zeros_like(counted)
                norm.momentum = None  # a plain average over the batches
                norm.training = True
            for inputs in batches:
                model(inputs)
    finally:
        for norm, momentum in momenta.items():
            norm.momentum = momentum
