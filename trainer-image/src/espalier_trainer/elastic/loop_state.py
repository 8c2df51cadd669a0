"""The training state of a loop as the core sees it, and its copy in a worker other than the leader."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from espalier_trainer.checkpoints.document import Checkpoint, CheckpointState
from espalier_trainer.elastic.broken import GroupBrokenError
from espalier_trainer.elastic.delivery import Place
from espalier_trainer.elastic.membership import NEWCOMER
from espalier_trainer.elastic.states import Command
from espalier_trainer.optimizers.building import optimizer_state
from espalier_trainer.optimizers.schedules import Moment
from espalier_trainer.training.hooks import Hooks
from espalier_trainer.training.network import OPTIMIZER_PREFIX, Network


@dataclass(frozen=True, slots=True)
class TrialRates:
    """Learning rates that the arms of a trial begin with."""

    grown: float
    same: float
    """That of the arm that does not grow."""
    linear: bool
    """Whether they fall to 0 at the end of the budget by themselves, linearly; else they stay in a race."""


class TrainingState(Protocol):
    """A network and the schedule of its learning rate."""

    @property
    def in_place(self) -> bool:
        """Whether `adopt` overwrites the previous network, so that a growth cannot be reverted."""

    @property
    def network(self) -> Network:
        """The network in training."""

    @property
    def device(self) -> torch.device:
        """The device of the network."""

    def state(self) -> dict[str, object]:
        """Return the state of the learning rate's schedule, as JSON types."""

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of the state that are neither the network's nor its optimizer's, by unique names."""

    def adopt(self, network: Network) -> None:
        """Train `network` from now on."""

    def advance(self, used: float) -> None:
        """Before a step: see `Network.advance`."""

    def load(self, checkpoint: Checkpoint) -> None:
        """Load the state of a checkpoint. Raises `CheckpointMismatchError` if it belongs to another model."""

    def note(self, state: CheckpointState) -> None:
        """Load the part of a checkpoint's state that is not tensors: the schedule's state."""

    def restart_schedule(self, moment: Moment) -> None:
        """Restart the learning rate's schedule."""

    def trial_rates(self, current: float | None, restarts: bool) -> TrialRates:
        """Return the rates of a trial; `current` is that of the last step, and `restarts`: growth begins it again."""

    def digest(self, network: Network) -> int:
        """Return a hash of what must be equal in all workers that train together."""


class StateCopy:
    """A worker's copy of the leader's training state."""

    def __init__(self, state: TrainingState, hooks: Hooks | None = None) -> None:
        self._state, self._hooks = state, hooks or Hooks()
        self._received: CheckpointState | None = None
        """The leader's last message about the state; None while this worker holds no copy."""
        self.taken = 0
        """Number of states that this worker has received."""

    @property
    def network(self) -> Network | None:
        """The network, None while this worker holds no copy."""
        return None if self._received is None else self._state.network

    @property
    def step(self) -> int:
        """Steps of the copy, `NEWCOMER` while there is none."""
        return NEWCOMER if self._received is None else self._received.step

    def capture(self) -> Checkpoint:
        """Return the copy."""
        if self._received is None:
            raise GroupBrokenError("this worker holds no state")
        network = self._state.network
        groups, tensors, values = optimizer_state(network.optimizer, network.module)
        now = self._received.model_copy(
            update={
                "schedule": self._state.state(),
                "optimizer_groups": tuple(groups),
                "optimizer_values": values,
            }
        )
        training = {f"{OPTIMIZER_PREFIX}{name}": tensor for name, tensor in tensors.items()}
        training["random.cpu"] = torch.get_rng_state()
        training |= self._state.tensors()
        return Checkpoint(now, network.module.state_dict(), training | self._hooks.capture()[1])

    def spare(self) -> dict[Place, Tensor]:
        """Return the tensors of a worker that holds no copy: the leader's state may overwrite them."""
        network = self._state.network
        if self._received is not None:
            return {}
        tensors = optimizer_state(network.optimizer, network.module)[1]
        found = {(False, name): tensor for name, tensor in network.module.state_dict().items()}
        return found | {(True, f"{OPTIMIZER_PREFIX}{name}"): tensor for name, tensor in tensors.items()}

    def take(self, checkpoint: Checkpoint) -> Network:
        """Hold a copy of this state from now on."""
        self._received = None
        self._state.load(checkpoint)
        self._received = checkpoint.state
        self.taken += 1
        return self._state.network

    def note(self, state: CheckpointState) -> None:
        """Load the part of the state that is not tensors."""
        self._state.note(state)
        self._received = state

    def lead_to(self, network: Network, state: CheckpointState) -> None:
        """Hold `network` and `state`, which training the copy by itself has led to."""
        self._state.adopt(network)
        self._received = state

    def forget(self) -> None:
        """Discard the copy, which becomes outdated."""
        self._received = None

    def stepped(self, command: Command, loss: float, batches: int) -> None:
        """Count the step that `command` was for, which took `batches` batches of the epoch."""
        if self._received is None:
            return
        before = self._received.epoch_loss_sum if command.cursor else 0.0
        self._received = self._received.model_copy(
            update={
                "epoch": command.epoch,
                "cursor": command.cursor + batches,
                "step": self._received.step + 1,
                "epoch_loss_sum": before + loss * batches,
            }
        )

    def epoch_finished(self, epoch: int) -> None:
        """Count an epoch, so that a leader restarted from this copy does not repeat the end of that epoch."""
        if self._received is not None:
            self._received = self._received.model_copy(update={"epoch": epoch + 1, "cursor": 0, "epoch_loss_sum": 0.0})
