"""Hooks of a run: the points at which a feature outside its loop takes part in it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from espalier_core.types.allocation import Allocation
from espalier_core.types.job import AdaptiveTrainingJob
from espalier_core.types.report import Adaptation
from espalier_trainer.checkpoints.document import Checkpoint, CheckpointState
from espalier_trainer.data.source import Data
from espalier_trainer.training.network import Network

Criterion = Callable[[Tensor, Tensor], Tensor]
"""Function from logits [N, C] and labels [N] to the sum of the examples' losses, a scalar."""


@dataclass(frozen=True, slots=True)
class Boundary:
    """The state of training at a step boundary."""

    network: Network
    state: Callable[[], CheckpointState]
    """Returns the network's state."""
    allocation: Allocation
    epoch: int
    time_left: float
    """Remaining seconds of the budget."""
    evaluation_seconds: float
    """Budget seconds of an evaluation on the validation split."""
    until: Callable[[], bool]
    """Returns whether an evaluation must be interrupted."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change requested by a hook."""

    network: Network
    """Network to continue with."""
    adaptation: Adaptation | None
    """Record of a decision; None when a trial begins."""
    trial_seconds: float = 0.0
    """Budget seconds of the trial that begins."""
    share: bool = False
    """Whether to save the state and send it to all workers although the network is the same."""


@dataclass(frozen=True, slots=True)
class HookContext:
    """The job, data and network of the built-in loop, for its hooks."""

    job: AdaptiveTrainingJob
    data: Data
    start: Network
    """The job's starting network, from which every state is rebuilt."""
    seed: int
    device: torch.device
    used_seconds: Callable[[], float] = lambda: 0.0
    """Returns the used seconds of the budget."""
    clock: Callable[[], float] = time.monotonic


class Hooks:
    """Extension of a run. This class does nothing at any point; subclasses override the points that they need."""

    @property
    def may_grow(self) -> bool:
        """Whether the network may grow now."""
        return True

    def at_boundary(self, boundary: Boundary) -> Change | None:
        """Act at a step boundary; return None if nothing changes."""
        return None

    def criterion(self, indices: Tensor, inputs: Tensor) -> Criterion | None:
        """Return the loss function for this batch; None for cross entropy with the labels."""
        return None

    def stepped(self, network: Network, seconds: float) -> None:
        """Called after a step that took `seconds` of the budget."""

    def grew(self, before: Network, state: Callable[[], CheckpointState]) -> None:
        """Called after a growth; `before` is the network that grew, and `state` returns its state."""

    def growth_undone(self) -> None:
        """Called when the last growth was reverted."""

    def failed(self, message: str) -> Change | None:
        """Return the change after a failed step; None if the hook cannot repair it."""
        return None

    def completed(self) -> Change | None:
        """Return the change at the end of the budget."""
        return None

    def capture(self) -> tuple[dict[str, object] | None, dict[str, Tensor]]:
        """Return the hook's part of a checkpoint: (JSON types, tensors)."""
        return None, {}

    def restore(self, checkpoint: Checkpoint, network: Network) -> Network:
        """Resume from the result of `capture` in a checkpoint of `network`; return the network to continue with."""
        return network
