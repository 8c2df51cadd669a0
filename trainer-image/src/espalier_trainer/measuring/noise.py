"""The noise of gradients from their norms over a small and a large batch. Pure.

S. McCandlish et al., An Empirical Model of Large-Batch Training (2018), appendix A.1: with G the true gradient and Σ
the covariance of one example's, E|g_B|² = |G|² + tr(Σ)/B for a batch of B. Two sizes of batches give both unknowns.
AdaptDL (Pollux, OSDI 2021) averages them in the same way, as the mean of a ratio is not the ratio of the means.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from espalier_core.types.measurements import GradientNoise

SMOOTHING: Final = 0.98
"""What an estimate keeps of its weight with each later one: the average is over some 50 of them."""


@dataclass(frozen=True, slots=True)
class Norms:
    """Squared norms of gradients over batches of two sizes."""

    small: float
    """Mean over the small batches."""
    small_batch: float
    """Examples in each."""
    large: float
    large_batch: float


def estimates(norms: Norms) -> tuple[float, float] | None:
    """Return (|G|², tr Σ), both unbiased and possibly negative; None where the norms do not tell."""
    if not 0 < norms.small_batch < norms.large_batch or not math.isfinite(norms.small + norms.large):
        return None
    variance = (norms.small - norms.large) / (1 / norms.small_batch - 1 / norms.large_batch)
    return norms.large - variance / norms.large_batch, variance


class Noise:
    """Exponential moving averages of both estimates."""

    def __init__(self, earlier: GradientNoise | None = None) -> None:
        """Continue from averages that were kept, if there are any."""
        self._samples = earlier.samples if earlier else 0
        self._weight = 1 - SMOOTHING**self._samples
        self._squared_norm = self._weight * earlier.squared_norm if earlier else 0.0
        self._variance = self._weight * earlier.variance if earlier else 0.0

    def add(self, norms: Norms) -> None:
        """Average one more estimate, if the norms give one."""
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
