"""Tensor arithmetic of growth: parameter values that make a new layer an identity. No modules, no graph.

Sources: Chen, Goodfellow, Shlens, "Net2Net" (2016), section 2.3 (identity layers); Lamelas section 4.3 (identity
batch norm). All functions write in place, into tensors of any floating type and device.
"""

from __future__ import annotations

import torch
from torch import Tensor


def tap_index(kernel_size: int) -> int:
    """Return the index of the kernel's tap that carries the identity: the centre, or left of it in an even kernel."""
    return (kernel_size - 1) // 2


def padding_sides(kernel_size: int, dilation: int, tap: int) -> tuple[int, int]:
    """Return the padding before and after at which, with stride 1, tap `tap` is aligned with the output."""
    return dilation * tap, dilation * (kernel_size - 1 - tap)


@torch.no_grad()
def identity_matrix_(weight: Tensor) -> None:
    """Make a square weight (features, features) the identity matrix."""
    weight.zero_()
    weight.fill_diagonal_(1)


@torch.no_grad()
def identity_kernel_(weight: Tensor, taps: tuple[int, ...]) -> None:
    """Make a kernel (channels, channels / groups, *size) return its input, within each group of channels."""
    channels, in_group = weight.shape[:2]
    weight.zero_()
    output = torch.arange(channels, device=weight.device)
    weight[(output, output % in_group, *(torch.full_like(output, tap) for tap in taps))] = 1


@torch.no_grad()
def identity_scale_(gamma: Tensor, variance: Tensor, eps: float) -> None:
    """Set a batch norm's gamma to sqrt(variance + eps), which is exactly what the batch norm divides by.

    The published identity batch norm (gamma = variance = 1) divides by sqrt(1 + eps) and is wrong by eps / 2,
    5e-6 of the value at torch's default.
    """
    gamma.copy_(torch.sqrt(variance.double() + eps))


def channel_moments(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and biased variance (both float64, per channel) of (batch, channels, *size) activations."""
    dims = [0, *range(2, values.dim())]
    variance, mean = torch.var_mean(values.double(), dim=dims, correction=0)
    return mean, variance
