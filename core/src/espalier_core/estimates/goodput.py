"""The batch size with the largest goodput: throughput times statistical efficiency. Pure.

A. Qiao et al., Pollux (OSDI 2021), section 3. With m₀ the batch size that the author chose, φ the noise scale of
gradients (`measurements.GradientNoise`) and m = S × m₀:

    efficiency(m) = (φ + m₀) / (φ + m)                          progress of an example, relative to m₀
    gain(S)       = S × efficiency(m) = (σ²/m₀ + μ²) / (σ²/m + μ²)    progress of a step, relative to a step of m₀
    goodput       = gain(S) / seconds of a step of m            progress a second, in steps of m₀

`gain` is AdaScale's (Johnson et al. 2020, arXiv:2007.05105): a step of m with the learning rate multiplied by it is
worth this many steps of m₀. Here, a batch size is a multiple of m₀, so all sizes cut an epoch into the same batches.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from espalier_core.estimates.throughput import LEAST_SECONDS, Throughput
from espalier_core.types.measurements import GradientNoise

CHOICES: Final = 50
"""Sizes that are compared at most, about in equal ratios from the smallest to the largest, as in Pollux."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """What the author of a job allows."""

    batch_size: int
    """m₀: examples in a step of all workers together. No smaller batch is chosen."""
    max_batch_size: int
    """Examples in a step of all workers together; m₀ where it is less."""
    max_pass_size: int | None = None
    """Examples that a worker computes in one pass, for its memory; None: any."""

    @property
    def most(self) -> int:
        """The largest multiple of m₀."""
        return max(1, self.max_batch_size // self.batch_size)

    def share(self, batches: int, workers: int) -> int:
        """Return the examples of one worker in a step."""
        return -(-batches * self.batch_size // workers)

    def passes(self, batches: int, workers: int) -> int:
        """Return the parts in which each of `workers` computes its share of `batches` × m₀ examples."""
        return 1 if self.max_pass_size is None else -(-self.share(batches, workers) // self.max_pass_size)


@dataclass(frozen=True, slots=True, order=True)
class Choice:
    """A batch size and what is expected of it."""

    goodput: float
    """Steps of m₀ whose progress is made in a second."""
    batches: int
    """The batch size divided by m₀."""
    passes: int
    """In which each worker computes its share."""


def adascale_gain(squared_norm: float, variance: float, scale: float) -> float:
    """Return how many steps of m₀ a step of `scale` × m₀ examples is worth: from 1 to `scale`, which is at least 1.

    `squared_norm` is that of the true gradient, `variance` the trace of the covariance of the gradient of m₀ examples.
    """
    noisy = variance / scale + squared_norm
    return (variance + squared_norm) / noisy if noisy > 0 else 1.0


def gain(noise: GradientNoise, batch_size: int, scale: float) -> float:
    """Return AdaScale's gain of `scale` × `batch_size` examples by measured noise."""
    found = adascale_gain(noise.squared_norm, noise.variance / batch_size, scale)
    return min(max(1.0, found), scale)  # rounding, and figures that overflow


def candidates(most: int) -> tuple[int, ...]:
    """Return the multiples of m₀ that are compared, from 1 to `most`."""
    steps = range(CHOICES)
    return tuple(sorted({round(most ** (step / (CHOICES - 1))) for step in steps})) if most > 1 else (1,)


def choice(
    model: Throughput, noise: GradientNoise, limits: BatchLimits, nodes: int, workers: int, batches: int
) -> Choice:
    """Return what is expected of steps of `batches` × m₀ examples."""
    passes = limits.passes(batches, workers)
    seconds = model.step_seconds(nodes, workers, batches * limits.batch_size / workers, passes)
    return Choice(gain(noise, limits.batch_size, batches) / max(LEAST_SECONDS, seconds), batches, passes)


@lru_cache(maxsize=4096)
def best(
    model: Throughput, noise: GradientNoise, limits: BatchLimits, nodes: int, workers: int, most: int | None = None
) -> Choice:
    """Return the batch size with the largest goodput, the smallest of those that are equal.

    `most` limits the multiples of m₀ further.
    """
    largest = limits.most if most is None else max(1, min(limits.most, most))
    return _best(choice(model, noise, limits, nodes, workers, batches) for batches in candidates(largest))


def _best(choices: Iterable[Choice]) -> Choice:
    return max(choices, key=lambda each: (each.goodput, -each.batches))
