"""What is sent between members: the command before each step, and a whole training state."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import torch
import xxhash
from pydantic import TypeAdapter
from torch import Tensor

from espalier_core.files.documents import dumps
from espalier_trainer.checkpoints.document import Checkpoint, CheckpointState
from espalier_trainer.elastic.batches import ONE, Portion
from espalier_trainer.elastic.broken import Sending
from espalier_trainer.elastic.delivery import Place, deliver, received
from espalier_trainer.elastic.group import Group
from espalier_trainer.elastic.membership import NEWCOMER
from espalier_trainer.optimizers.building import optimizer_state
from espalier_trainer.optimizers.schedules import UNKNOWN, Moment
from espalier_trainer.training.network import Network

_COMMAND: Final = struct.Struct(">5q3d2?")
_ORDERS = TypeAdapter(dict[int, str])
"""Orders by rank."""


class Code(IntEnum):
    """What all members must do next."""

    WAIT = 0
    """Nothing: the leader evaluates, consults the agent, or saves."""
    STEP = 1
    STATE = 2
    """Replace the state by the leader's, which has grown or undone a growth."""
    NOTE = 3
    """Replace the non-tensor part of the state by the leader's."""
    FORM = 4
    """Leave this generation, and join the next one."""
    END = 5
    """The job is done."""
    EPOCH = 6
    """The epoch is over: a user's loop runs the code after its batches."""
    APART = 7
    """Leave this generation: some to join the next one, others to carry out an order by themselves first."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command of the leader; for a step: its place in the data. The learning rate comes with the gradients."""

    code: Code
    epoch: int = 0
    cursor: int = 0
    measured: bool = False
    """Whether the members measure the noise of their gradients in this step."""
    portion: Portion = ONE
    """Of the epoch, in this step."""
    moment: Moment = UNKNOWN
    """Where the leader's loop stands in the budget, for the loops of the others."""

    def send(self, group: Group) -> None:
        """Send it to all members."""
        self.sending(group).wait()

    def sending(self, group: Group) -> Sending:
        """Begin to send it to all members. If that fails, so does what follows in the group."""
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
    """Send all members what they lack of the leader's state."""
    Command(Code.STATE).send(group)
    deliver(group, 0, range(1, group.world), checkpoint)


def broadcast_note(group: Group, state: CheckpointState) -> None:
    """Send the non-tensor part of the leader's state to all members."""
    Command(Code.NOTE).send(group)
    group.broadcast_document(dumps(state, compact=True).encode())


def receive_state(group: Group, held: Checkpoint | None) -> Checkpoint:
    """Receive the leader's state after its command; `held` is this member's, tensors of which become part of it."""
    found = deliver(group, 0, range(1, group.world), None, held)
    if found is None:
        raise ValueError("the leader does not receive its own state")
    return found


def broadcast_orders(group: Group, orders: Mapping[int, str]) -> None:
    """Send the members of these ranks away with an order each; all others are to form the next generation."""
    Command(Code.APART).send(group)
    group.broadcast_document(_ORDERS.dump_json(dict(orders)))


def receive_order(group: Group) -> str | None:
    """Receive the orders after their command; returns this member's, None if it has none."""
    return _ORDERS.validate_json(group.broadcast_document(None)).get(group.rank)


def receive_note(group: Group) -> CheckpointState:
    """Receive the non-tensor state after its command."""
    return received(group.broadcast_document(None), CheckpointState)


def digest(network: Network) -> int:
    """Return 62 bits of the XXH3 of parameters and optimizer state, which are bit-equal on all members.

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
    """Send the state of the member `source` to all members with another one, or none; returns whether all are then
    equal.

    Every member calls it. `capture` returns the state if this member is the source; `take` loads it if this member
    lacks it, and returns the resulting network. `hashed` is what must be equal. `spare` returns tensors of a member
    without a state that may be overwritten.
    """
    own = NEWCOMER if network is None else hashed(network)
    found = digests(group, own)
    lacking = [rank for rank, each in enumerate(found) if each != found[source]]
    if not lacking:
        return True
    # A newcomer holds nothing that is worth comparing.
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
