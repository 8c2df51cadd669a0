"""How tensors lie in memory: whatever belongs to a parameter lies as the parameter does.

torch's fused optimizers on the CPU read a parameter, its gradient and its moments as flat memory, and check neither
strides nor order. With a gradient of another layout they update other elements than those it belongs to, silently.
Autograd's own gradients lie as their parameters; what comes from other workers, files and growth may not.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

_KERNEL: int = 4
"""Dimensions of the kernel of a convolution in two directions."""


def laid_as(tensor: Tensor, parameter: Tensor) -> Tensor:
    """Return `tensor` in the layout of `parameter`: itself where it has that, or another shape; else a copy."""
    if tensor.shape != parameter.shape or tensor.stride() == parameter.stride():
        return tensor
    room = torch.empty_like(parameter, dtype=tensor.dtype, device=tensor.device, memory_format=torch.preserve_format)
    return room.copy_(tensor)


@torch.no_grad()
def lay_moments(optimizer: Optimizer) -> None:
    """Give the state of each parameter, in place, the layout of the parameter."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            state = optimizer.state.get(parameter, {})
            for key, value in state.items():
                if isinstance(value, Tensor):
                    state[key] = laid_as(value.detach(), parameter)


def has_layouts(module: nn.Module) -> bool:
    """Return whether channels-last is another layout for this module: it has kernels in two directions, none in three.

    Of a 1×1 kernel both are the same, but activations follow it.
    """
    ranks = [parameter.dim() for parameter in module.parameters()]
    return _KERNEL in ranks and max(ranks) <= _KERNEL


def lay(module: nn.Module, optimizer: Optimizer | None, *, channels_last: bool) -> None:
    """Give kernels, and with `optimizer` their moments, one layout or the other; parameters stay the same objects."""
    module.to(memory_format=torch.channels_last if channels_last else torch.contiguous_format)
    if optimizer is not None:
        lay_moments(optimizer)
