"""How the steps of a network are computed, if not as its module's code says: by what an installed package has found.

Such a computation shares the module's parameters, buffers and layers. What is grown, saved, exchanged and evaluated is
the module. The package is found by the entry point `rewrites` of the group `espalier.executions`; none is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from torch import Tensor, nn

from espalier_core.registry import Registry, RegistryError
from espalier_trainer.net2net.modules import ExampleInput

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
