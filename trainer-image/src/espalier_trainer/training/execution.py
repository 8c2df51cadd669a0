"""Executions: alternative computations of a network's steps, and comparisons of their speed.

An execution is found by an installed package. It shares the module's parameters, buffers and layers. Growth,
checkpoints, exchanges and evaluation use the module. The package is found by the entry point `rewrites` of the group
`espalier.executions`; none is needed. To compare two executions, their steps are measured in turn, so that any slowdown
of the machine slows both.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import torch
from torch import Tensor, nn

from espalier_core.registry import Registry, RegistryError
from espalier_trainer.measuring.gradients import settle
from espalier_trainer.net2net.modules import ExampleInput, device_of

Loss = Callable[[Tensor, Tensor], Tensor]
"""Function from outputs and targets to their loss."""


class RewritesRefusedError(Exception):
    """This model's computation cannot be rewritten; the message gives reason and remedy."""


class BrokenOffError(Exception):
    """An attempt took longer than allowed, or the run must stop."""


@dataclass(frozen=True, slots=True)
class Execution:
    """A computation of training steps over the parameters, buffers and layers of a module."""

    module: nn.Module
    """Module that computes in train mode only."""
    plan: Mapping[str, Any]
    """Derivation from the module, as JSON with its `rules`; it allows deriving it again without a search."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of an attempt's cost."""

    step: float
    """Seconds of a training step."""
    allowed: float
    """Seconds allowed for the attempt."""
    check: Callable[[], None]
    """Called often; raises `BrokenOffError` once the attempt must end."""
    clock: Callable[[], float]


@dataclass(frozen=True, slots=True)
class Rewrite:
    """The result of an attempt."""

    message: str
    execution: Execution | None = None
    """Execution found; None if no exact computation promises to be faster."""
    rules: int = 0
    evaluations: int | None = None
    error: float | None = None
    """Largest relative error in double precision."""


class Rewriter(Protocol):
    """Finds and applies computations that give the same steps as a module."""

    def seconds(self, module: nn.Module, step: float) -> float:
        """Return the approximate seconds of an attempt, given the seconds of a step of the module."""

    def attempt(
        self,
        module: nn.Module,
        inputs: Tensor,
        targets: Tensor,
        loss: Loss,
        limits: Limits,
    ) -> Rewrite:
        """Search for a faster computation, which must be exact on a batch.

        Raises `RewritesRefusedError` for a model that cannot be captured, and any error of `limits.check`.
        """

    def executed(self, module: nn.Module, plan: Mapping[str, Any], example: ExampleInput) -> Execution:
        """Return the execution of `module` by a plan.

        Raises `RewritesRefusedError` for a plan of another model or device, and for a model that cannot be captured.
        """

    def forget(self) -> None:
        """Discard measurements, as the module's memory layout has changed."""


REWRITERS: Final[Registry[Callable[[], Rewriter]]] = Registry("execution", "espalier.executions", {})


def rewriter() -> Rewriter:
    """Return a new rewriter of the installed package. Raises `RewritesRefusedError` where there is none."""
    try:
        return REWRITERS.load("rewrites")()
    except RegistryError as error:
        raise RewritesRefusedError(
            f"adaptation.optimise: steps cannot be rewritten here ({error}); install espalier-lab, or set it to Off"
        ) from error


WARMUP: Final = 2
"""Number of pairs of steps that are not counted."""

PAIRS: Final = 15
"""Number of pairs of steps in a comparison; fewer do not show a gain of a few percent."""

Step = Callable[[nn.Module], object]
"""Function that runs one step through a module; it may train: both modules have the same parameters."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Pairs of seconds: of a step through the module, and of one through its execution."""

    pairs: tuple[tuple[float, float], ...]

    @property
    def gains(self) -> list[float]:
        """Factor by which the execution is faster, for each pair."""
        return [before / after for before, after in self.pairs]

    @property
    def gain(self) -> float:
        """Median factor by which the execution is faster."""
        return statistics.median(self.gains)

    @property
    def quartiles(self) -> tuple[float, float]:
        """Lower and upper quartile of the factor."""
        lower, _, upper = statistics.quantiles(self.gains, n=4, method="inclusive")
        return lower, upper

    @property
    def seconds(self) -> tuple[float, float]:
        """Median seconds of a step through the module and through the execution."""
        return statistics.median(one for one, _ in self.pairs), statistics.median(one for _, one in self.pairs)

    def faster(self, least: float) -> bool:
        """Return whether the gain is at least `least` (0.03 for 3 %), and positive in three of four pairs."""
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
    """Return the seconds of one step, until the device has computed it."""
    settle(device)
    start = clock()
    step(model)
    settle(device)
    return clock() - start
