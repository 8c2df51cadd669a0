"""Norms and noise of gradients.

The norms are those of members that train together, or of successive steps of a worker alone. The noise follows from the
norms over a small and a large batch: S. McCandlish et al., An Empirical Model of Large-Batch Training (2018), appendix
A.1: with G the true gradient and Σ the covariance of one example's, E|g_B|² = |G|² + tr(Σ)/B for a batch of B. Two
sizes of batches give both unknowns. AdaptDL (Pollux, OSDI 2021) averages them in the same way, as the mean of a ratio
is not the ratio of the means.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn

from espalier_core.types.measurements import GradientNoise

SMOOTHING: Final = 0.98
"""Share of its weight that an estimate keeps with each later one: the average is over some 50 of them."""


@dataclass(frozen=True, slots=True)
class Norms:
    """Squared norms of gradients over batches of two sizes."""

    small: float
    """Mean over the small batches."""
    small_batch: float
    """Number of examples in each."""
    large: float
    large_batch: float


def estimates(norms: Norms) -> tuple[float, float] | None:
    """Return (|G|², tr Σ), both unbiased and possibly negative; None where the norms do not determine them."""
    if not 0 < norms.small_batch < norms.large_batch or not math.isfinite(norms.small + norms.large):
        return None
    variance = (norms.small - norms.large) / (1 / norms.small_batch - 1 / norms.large_batch)
    return norms.large - variance / norms.large_batch, variance


class Noise:
    """Exponential moving averages of both estimates."""

    def __init__(self, earlier: GradientNoise | None = None) -> None:
        """Continue from earlier averages, if there are any."""
        self._samples = earlier.samples if earlier else 0
        self._weight = 1 - SMOOTHING**self._samples
        self._squared_norm = self._weight * earlier.squared_norm if earlier else 0.0
        self._variance = self._weight * earlier.variance if earlier else 0.0

    def add(self, norms: Norms) -> None:
        """Add one more estimate, if the norms give one."""
        found = estimates(norms)
        if found is None:
            return
        self._samples += 1
        self._weight = SMOOTHING * self._weight + 1 - SMOOTHING
        self._squared_norm = SMOOTHING * self._squared_norm + (1 - SMOOTHING) * found[0]
        self._variance = SMOOTHING * self._variance + (1 - SMOOTHING) * found[1]

    def measured(self) -> GradientNoise | None:
        """Return the averages; None before the first estimate."""
        if not self._samples:
            return None
        squared_norm, variance = (max(0.0, each / self._weight) for each in (self._squared_norm, self._variance))
        return GradientNoise(squared_norm=squared_norm, variance=variance, samples=self._samples)


MAX_COORDINATES = 1 << 22
"""Maximum number of a gradient's entries that a worker alone keeps for a step: 16 MiB. Of a larger one it takes
equidistant entries, with a varying start, which estimate the norm without bias."""


def settle(device: torch.device) -> None:
    """Wait until the device has finished its work, so that time measured from now on belongs to later work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def squared_norm(tensor: Tensor) -> Tensor:
    """Return the squared norm of a flat tensor, a scalar."""
    return torch.dot(tensor, tensor)


class Successive:
    """The gradients of two successive steps, which stand for two batches at the same weights, as in AdaptDL.

    The weights change slightly in between: the drift makes the estimated variance too large.
    """

    def __init__(self) -> None:
        self._kept: Tensor | None = None
        self._examples = self._turn = 0

    @property
    def waits(self) -> bool:
        """Whether the first of two gradients is kept."""
        return self._kept is not None

    def forget(self) -> None:
        """Drop the kept gradient."""
        self._kept = None

    def look(self, module: nn.Module, examples: int, scale: Tensor | float = 1.0) -> Norms | None:
        """Keep the gradients of `module`, `scale` times a mean over `examples`, or compare them with the kept ones.

        Returns None for the first of two, and for two that cannot be compared.
        """
        gradients = [each.grad for each in module.parameters() if each.requires_grad and each.grad is not None]
        if self._kept is None:
            self._turn += 1
        count = sum(gradient.numel() for gradient in gradients)
        stride = max(1, -(-count // MAX_COORDINATES))
        taken = _flat(gradients, self._turn % stride, stride) / scale
        before, self._kept = self._kept, None
        if before is None:
            self._kept, self._examples = taken, examples
            return None
        if before.shape != taken.shape or examples != self._examples or not count:
            return None
        norms = torch.stack([squared_norm(before), squared_norm(taken), squared_norm((before + taken) / 2)])
        first, second, both = (stride * norms).tolist()
        return Norms((first + second) / 2, examples, both, 2 * examples)


class Passes:
    """The gradients of the passes of one step: of several batches at the same weights, which add up."""

    def __init__(self, module: nn.Module, turn: int) -> None:
        """`turn` is a number that differs from step to step: a large gradient is sampled in parts."""
        self._module, self._turn = module, turn
        self._sum: Tensor | None = None
        self._before: Tensor | None = None
        self._stride = 1

    def look(self, share: float) -> None:
        """Record the gradients after a pass over this share of the examples."""
        found = [each.grad for each in self._module.parameters() if each.requires_grad and each.grad is not None]
        self._stride = max(1, -(-sum(gradient.numel() for gradient in found) // MAX_COORDINATES))
        taken = _flat(found, self._turn % self._stride, self._stride)
        own = taken if self._before is None else taken - self._before
        # The part of the mean is the mean over the pass times its share, so the shares weight the squared norms.
        norm = squared_norm(own) / share
        self._sum, self._before = norm if self._sum is None else self._sum + norm, taken

    def norms(self, examples: int, passes: int) -> Norms | None:
        """Return the squared norms of passes and step; None if the passes had different parameters."""
        if self._sum is None or self._before is None:
            return None
        small, large = (self._stride * torch.stack([self._sum, squared_norm(self._before)])).tolist()
        return Norms(small, examples / passes, large, examples)


def _flat(gradients: Iterable[Tensor], first: int, stride: int) -> Tensor:
    """Return every `stride`th entry of the gradients, from index `first`, as one new tensor of real numbers."""
    parts: list[Tensor] = []
    for gradient in gradients:
        dense = gradient.detach().to_dense() if gradient.is_sparse else gradient.detach()
        part = dense.reshape(-1)[first::stride]
        parts.append((torch.view_as_real(part).reshape(-1) if part.is_complex() else part).float())
    return torch.cat(parts) if parts else torch.zeros(0)


class Stopwatch:
    """Seconds of a block on a device, without work that was begun before it."""

    def __init__(self, device: torch.device) -> None:
        self._device, self.seconds = device, 0.0

    def __enter__(self) -> Stopwatch:
        settle(self._device)
        self._began = time.perf_counter()
        return self

    def __exit__(self, *error: object) -> None:
        settle(self._device)
        self.seconds = time.perf_counter() - self._began
