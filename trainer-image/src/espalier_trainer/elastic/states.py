"""A loop's training state as the elastic core sees it, and the messages by which members exchange it.

Before each step the leader sends a command; new members receive a whole training state. A worker other than the leader
holds a `StateCopy`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Protocol

import torch
import xxhash
from pydantic import TypeAdapter
from torch import Tensor

from espalier_core.files.documents import dumps
from espalier_trainer.checkpoints.document import Checkpoint, CheckpointState
from espalier_trainer.elastic.delivery import Place, deliver, received
from espalier_trainer.elastic.group import Group, GroupBrokenError, Sending
from espalier_trainer.elastic.membership import NEWCOMER, ONE, Portion
from espalier_trainer.optimizers.building import optimizer_state
from espalier_trainer.optimizers.schedules import UNKNOWN, Moment
from espalier_trainer.training.hooks import Hooks
from espalier_trainer.training.network import OPTIMIZER_PREFIX, Network

_COMMAND: Final = struct.Struct(">5q3d2?")
_ORDERS = TypeAdapter(dict[int, str])
"""Orders by rank."""


class Code(IntEnum):
    """Command for all members."""

    WAIT = 0
    """Do nothing: the leader evaluates, consults the agent, or saves."""
    STEP = 1
    STATE = 2
    """Replace the state by the leader's, which has grown or reverted a growth."""
    NOTE = 3
    """Replace the non-tensor part of the state by the leader's."""
    FORM = 4
    """Leave this generation, and join the next one."""
    END = 5
    """The job is done."""
    EPOCH = 6
    """End the epoch: a user's loop runs the code after its batches."""
    TRIAL = 7
    """Leave this generation: some members to join the next one, others to carry out an order by themselves first."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command of the leader; for a step, with its place in the data. The learning rate comes with the gradients."""

    code: Code
    epoch: int = 0
    cursor: int = 0
    measured: bool = False
    """Whether the members measure the gradient noise in this step."""
    portion: Portion = ONE
    """Portion of the epoch in this step."""
    moment: Moment = UNKNOWN
    """Position of the leader's loop in the budget, for the loops of the others."""

    def send(self, group: Group) -> None:
        """Send the command to all members."""
        self.sending(group).wait()

    def sending(self, group: Group) -> Sending:
        """Begin to send the command to all members. If that fails, so do the group's next operations."""
        portion = self.portion
        flags = (self.measured, portion.full)
        counts = (self.code, self.epoch, self.cursor, portion.batches, portion.passes)
        rates = (portion.rate, self.moment.used_seconds, self.moment.budget_seconds)
        return group.broadcasting_document(_COMMAND.pack(*counts, *rates, *flags))

    @classmethod
    def receive(cls, group: Group) -> Command:
        """Wait for the leader's next command."""
        code, epoch, cursor, batches, passes, rate, used, budget, measured, full = _COMMAND.unpack(
            group.receive_document(_COMMAND.size)
        )
        return cls(Code(code), epoch, cursor, measured, Portion(batches, passes, rate, full), Moment(used, budget))


def broadcast_state(group: Group, checkpoint: Checkpoint) -> None:
    """Send all members the parts of the leader's state that they lack."""
    Command(Code.STATE).send(group)
    deliver(group, 0, range(1, group.world), checkpoint)


def broadcast_note(group: Group, state: CheckpointState) -> None:
    """Send the non-tensor part of the leader's state to all members."""
    Command(Code.NOTE).send(group)
    group.broadcast_document(dumps(state, compact=True).encode())


def receive_state(group: Group, held: Checkpoint | None) -> Checkpoint:
    """Receive the leader's state after its command; tensors of `held`, this member's state, become part of it."""
    found = deliver(group, 0, range(1, group.world), None, held)
    if found is None:
        raise ValueError("the leader does not receive its own state")
    return found


def broadcast_orders(group: Group, orders: Mapping[int, str]) -> None:
    """Send each member of these ranks away with an order; all others must form the next generation."""
    Command(Code.TRIAL).send(group)
    group.broadcast_document(_ORDERS.dump_json(dict(orders)))


def receive_order(group: Group) -> str | None:
    """Receive the orders after their command; return this member's, None if it has none."""
    return _ORDERS.validate_json(group.broadcast_document(None)).get(group.rank)


def receive_note(group: Group) -> CheckpointState:
    """Receive the non-tensor state after its command."""
    return received(group.broadcast_document(None), CheckpointState)


def digest(network: Network) -> int:
    """Return 62 bits of the XXH3 of parameters and optimizer state, which must be bit-equal on all members.

    The hash detects accidents, not attacks, and is computed twice within the pause of a join, so it is not
    cryptographic. Buffers are left out: each member has its own running statistics of batch norms.
    """
    found = xxhash.xxh3_64()
    tensors: dict[str, Tensor] = {name: parameter.detach() for name, parameter in network.module.named_parameters()}
    tensors |= {
        f"optimizer.{name}": each for name, each in optimizer_state(network.optimizer, network.module)[1].items()
    }
    for name in sorted(tensors):
        found.update(name.encode())
        found.update(tensors[name].cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return found.intdigest() >> 2


def digests(group: Group, own: int) -> list[int]:
    """Return all members' digests, by rank."""
    found = torch.zeros(group.world, dtype=torch.int64)
    found[group.rank] = own
    group.all_reduce(found)
    return [int(each) for each in found.tolist()]


def align(
    group: Group,
    source: int,
    network: Network | None,
    capture: Callable[[], Checkpoint],
    take: Callable[[Checkpoint], Network],
    hashed: Callable[[Network], int] = digest,
    spare: Callable[[], Mapping[Place, Tensor]] = dict,
) -> bool:
    """Send the state of the member `source` to all members with another one, or none; return whether all are then
    equal.

    Every member calls it. `capture` returns the state if this member is the source; `take` loads it if this member
    lacks it, and returns the resulting network. `hashed` returns the value that must be equal. `spare` returns tensors
    that may be overwritten, of a member without a state.
    """
    own = NEWCOMER if network is None else hashed(network)
    found = digests(group, own)
    lacking = [rank for rank, each in enumerate(found) if each != found[source]]
    if not lacking:
        return True
    # A newcomer holds no tensors worth comparing.
    compared = any(found[rank] != NEWCOMER for rank in lacking)
    holds = network is not None and compared and group.rank in lacking
    held = capture() if group.rank == source or holds else None
    room = spare() if network is None else {}
    network = None  # the previous one, which `take` drops
    if group.rank == source:
        deliver(group, source, lacking, held, hashed=compared)
    elif (state := deliver(group, source, lacking, None, held, hashed=compared, spare=room)) is not None:
        held, room = None, {}
        own = hashed(take(state))
    return len(set(digests(group, own))) == 1


@dataclass(frozen=True, slots=True)
class TrialRates:
    """Initial learning rates of a trial's arms."""

    grown: float
    same: float
    """Rate of the arm that does not grow."""
    linear: bool
    """Whether they fall linearly to 0 at the end of the budget by themselves; else they stay constant in a race."""


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
        """Replace the network in training by `network`."""

    def advance(self, used: float) -> None:
        """Advance the network before a step; see `Network.advance`."""

    def load(self, checkpoint: Checkpoint) -> None:
        """Load the state of a checkpoint. Raises `CheckpointMismatchError` if it belongs to another model."""

    def note(self, state: CheckpointState) -> None:
        """Load the non-tensor part of a checkpoint's state: the schedule's state."""

    def restart_schedule(self, moment: Moment) -> None:
        """Restart the learning rate's schedule."""

    def trial_rates(self, current: float | None, restarts: bool) -> TrialRates:
        """Return the rates of a trial; `current` is the last rate, `restarts` whether growth restarts the schedule."""

    def digest(self, network: Network) -> int:
        """Return a hash of the values that must be equal in all workers that train together."""


class StateCopy:
    """A worker's copy of the leader's training state."""

    def __init__(self, state: TrainingState, hooks: Hooks | None = None) -> None:
        self._state, self._hooks = state, hooks or Hooks()
        self._received: CheckpointState | None = None
        """The leader's last message about the state; None while this worker holds no copy."""
        self.taken = 0
        """Number of states received by this worker."""

    @property
    def network(self) -> Network | None:
        """The network; None while this worker holds no copy."""
        return None if self._received is None else self._state.network

    @property
    def step(self) -> int:
        """Number of steps of the copy; `NEWCOMER` while there is none."""
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
        """Return tensors that the leader's state may overwrite; empty if this worker holds a copy."""
        network = self._state.network
        if self._received is not None:
            return {}
        tensors = optimizer_state(network.optimizer, network.module)[1]
        found = {(False, name): tensor for name, tensor in network.module.state_dict().items()}
        return found | {(True, f"{OPTIMIZER_PREFIX}{name}"): tensor for name, tensor in tensors.items()}

    def take(self, checkpoint: Checkpoint) -> Network:
        """Hold a copy of this state from now on; return its network."""
        self._received = None
        self._state.load(checkpoint)
        self._received = checkpoint.state
        self.taken += 1
        return self._state.network

    def note(self, state: CheckpointState) -> None:
        """Load the non-tensor part of the state."""
        self._state.note(state)
        self._received = state

    def lead_to(self, network: Network, state: CheckpointState) -> None:
        """Hold `network` and `state`, the result of training the copy by itself."""
        self._state.adopt(network)
        self._received = state

    def forget(self) -> None:
        """Discard the copy, which is outdated."""
        self._received = None

    def stepped(self, command: Command, loss: float, batches: int) -> None:
        """Count the step of `command`, which took `batches` batches of the epoch."""
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
