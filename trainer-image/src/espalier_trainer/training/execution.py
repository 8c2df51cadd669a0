"""Other ways to compute the steps of a network than its module's code, and comparisons of their speed.

Such a computation is what an installed package has found. It shares the module's parameters, buffers and layers. What
is grown, saved, exchanged and evaluated is the module. The package is found by the entry point `rewrites` of the group
`espalier.executions`; none is needed. To compare two executions, steps of both are measured in turn, so that whatever
slows the machine slows both.
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
"""Returns the loss of outputs and targets."""


class RewritesRefusedError(Exception):
    """The computation of this model is left as it is; the message says why, and what would help."""


class BrokenOffError(Exception):
    """An attempt took longer than allowed, or the run is to stop."""


@dataclass(frozen=True, slots=True)
class Execution:
    """A computation of training steps over the parameters, buffers and layers of a module."""

    module: nn.Module
    """For train mode alone."""
    plan: Mapping[str, Any]
    """How it was derived from the module, as JSON: its `rules`. By it, it is derived again without a search."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What an attempt may cost."""

    step: float
    """Seconds of a training step."""
    allowed: float
    """Seconds of the attempt."""
    check: Callable[[], None]
    """Called often; raises `BrokenOffError` once the attempt has to end."""
    clock: Callable[[], float]


@dataclass(frozen=True, slots=True)
class Rewrite:
    """What an attempt has found."""

    message: str
    execution: Execution | None = None
    """None: no exact computation that promises to be faster."""
    rules: int = 0
    evaluations: int | None = None
    error: float | None = None
    """Largest relative error in double precision."""


class Rewriter(Protocol):
    """Finds computations that give the same steps as a module, and carries them out."""

    def seconds(self, module: nn.Module, step: float) -> float:
        """Return about how long an attempt takes, if a step of the module takes `step` seconds."""

    def attempt(
        self,
        module: nn.Module,
        inputs: Tensor,
        targets: Tensor,
        loss: Loss,
        limits: Limits,
    ) -> Rewrite:
        """Search for a faster computation, which has to be exact on a batch.

        Raises `RewritesRefusedError` for a model that cannot be captured, and what `limits.check` raises.
        """

    def executed(self, module: nn.Module, plan: Mapping[str, Any], example: ExampleInput) -> Execution:
        """Return the execution of `module` by a plan.

        Raises `RewritesRefusedError` for a plan of another model or device, and for a model that cannot be captured.
        """

    def forget(self) -> None:
        """Forget what was measured, as the module lies in memory otherwise now."""


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
