"""Is an execution faster? Steps of both are measured in turn, so that whatever slows the machine slows both."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from torch import nn

from espalier_trainer.measuring.gradients import settle
from espalier_trainer.net2net.modules import device_of

WARMUP: Final = 2
"""Pairs of steps that do not count."""

PAIRS: Final = 15
"""Pairs of steps of a comparison; fewer do not show a gain of a few percent."""

Step = Callable[[nn.Module], object]
"""Runs one step through the module that it is given; it may train: both have the same parameters."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Pairs of seconds: of a step through the module, and of one through its execution."""

    pairs: tuple[tuple[float, float], ...]

    @property
    def gains(self) -> list[float]:
        """Return for each pair by which factor the execution is faster."""
        return [before / after for before, after in self.pairs]

    @property
    def gain(self) -> float:
        """Return the median factor by which the execution is faster."""
        return statistics.median(self.gains)

    @property
    def quartiles(self) -> tuple[float, float]:
        """Return the lower and the upper quartile of the factor."""
        lower, _, upper = statistics.quantiles(self.gains, n=4, method="inclusive")
        return lower, upper

    @property
    def seconds(self) -> tuple[float, float]:
        """Return the medians of a step through the module and through the execution."""
        return statistics.median(one for one, _ in self.pairs), statistics.median(one for _, one in self.pairs)

    def faster(self, least: float) -> bool:
        """Return whether the gain is `least` (.03: 3 %) or more, and three of four pairs say that there is one."""
        return self.gain >= 1 + least and self.quartiles[0] > 1


def compare(
    module: nn.Module,
    execution: nn.Module,
    step: Step,
    *,
    pairs: int = PAIRS,
    warmup: int = WARMUP,
    clock: Callable[[], float] = time.perf_counter,
) -> Comparison:
    """Return the durations of `pairs` pairs of steps, module and execution in turn, after `warmup` pairs unmeasured.

    `step` is called `2 × (pairs + warmup)` times. Every other pair begins with the execution. Raises `ValueError` for
    fewer than two pairs.
    """
    if pairs < 2:
        raise ValueError(f"pairs is {pairs}; quartiles need at least 2")
    device = device_of(module)
    measured = []
    for number in range(warmup + pairs):
        order = (module, execution) if number % 2 == 0 else (execution, module)
        first, second = (seconds_of(one, step, device, clock) for one in order)
        measured.append((first, second) if number % 2 == 0 else (second, first))
    return Comparison(tuple(measured[warmup:]))


def seconds_of(model: nn.Module, step: Step, device: torch.device, clock: Callable[[], float]) -> float:
    """Return how long one step takes, until the device has computed it."""
    settle(device)
    start = clock()
    step(model)
    settle(device)
    return clock() - start
