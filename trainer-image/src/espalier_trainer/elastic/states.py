"""What is sent between members: the command before each step, and a whole training state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

import torch
import xxhash
from pydantic import TypeAdapter
from torch import Tensor

from espalier_api.documents import dumps, loads
from espalier_trainer.checkpoint import Checkpoint, CheckpointState
from espalier_trainer.elastic.batches import ONE, Portion
from espalier_trainer.elastic.group import PIECE_BYTES, Group
from espalier_trainer.elastic.membership import NEWCOMER
from espalier_trainer.network import Network
from espalier_trainer.optimizers import optimizer_state
from espalier_trainer.packing import Packed, packed, unpacked
from espalier_trainer.schedules import UNKNOWN, Moment

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
    """A command of the leader; for a step: its place in the data, and the learning rate."""

    code: Code
    epoch: int = 0
    cursor: int = 0
    rate: float = 0.0
    size: int = 0
    """Bytes that follow."""
    measured: bool = False
    """Whether the members measure the noise of their gradients in this step."""
    portion: Portion = ONE
    """Of the epoch, in this step."""
    moment: Moment = UNKNOWN
    """Where the leader's loop stands in the budget, for the loops of the others."""

    def send(self, group: Group) -> None:
        """Send it to all members."""
        portion = self.portion
        numbers = [float(self.code), self.epoch, self.cursor, self.rate, self.size, float(self.measured)]
        numbers += [portion.batches, portion.passes, portion.rate, float(portion.full)]
        numbers += [self.moment.used_seconds, self.moment.budget_seconds]
        group.broadcast(torch.tensor(numbers, dtype=torch.float64, device=group.device), 0)

    @classmethod
    def receive(cls, group: Group) -> Command:
        """Wait for the leader's next command."""
        tensor = torch.zeros(12, dtype=torch.float64, device=group.device)
        group.broadcast(tensor, 0)
        code, epoch, cursor, rate, size, measured, *rest = tensor.tolist()
        batches, passes, factor, full, used, budget = rest
        portion = Portion(int(batches), int(passes), factor, full > 0)
        return cls(
            Code(int(code)), int(epoch), int(cursor), rate, int(size), measured > 0, portion, Moment(used, budget)
        )


def broadcast_state(group: Group, checkpoint: Checkpoint) -> None:
    """Send the leader's state to all members."""
    state = packed(checkpoint)
    _broadcast(group, Code.STATE, state.head)
    for each in (state.model, state.training):
        group.broadcast(each.to(group.device), 0)


def broadcast_note(group: Group, state: CheckpointState) -> None:
    """Send the non-tensor part of the leader's state to all members."""
    _broadcast(group, Code.NOTE, torch.frombuffer(bytearray(dumps(state).encode()), dtype=torch.uint8))


def broadcast_orders(group: Group, orders: Mapping[int, str]) -> None:
    """Send the members of these ranks away with an order each; all others are to form the next generation."""
    _broadcast(group, Code.APART, torch.frombuffer(bytearray(_ORDERS.dump_json(dict(orders))), dtype=torch.uint8))


def receive_order(group: Group, command: Command) -> str | None:
    """Receive the orders that `command` announces; returns this member's, None if it has none."""
    content = torch.zeros(command.size, dtype=torch.uint8, device=group.device)
    group.broadcast(content, 0)
    return _ORDERS.validate_json(content.cpu().numpy().tobytes()).get(group.rank)


def receive_state(group: Group, command: Command) -> Checkpoint:
    """Receive the leader's state that `command` announces."""
    head = torch.empty(command.size, dtype=torch.uint8, device=group.device)
    group.broadcast(head, 0)
    room = Packed.allocate(head.cpu())
    model, training = (each.to(group.device) for each in (room.model, room.training))
    group.broadcast(model, 0)
    group.broadcast(training, 0)
    return unpacked(Packed(room.head, model.cpu(), training.cpu()))


def receive_note(group: Group, command: Command) -> CheckpointState:
    """Receive the non-tensor state that `command` announces."""
    content = torch.zeros(command.size, dtype=torch.uint8, device=group.device)
    group.broadcast(content, 0)
    return loads(content.cpu().numpy().tobytes().decode(), CheckpointState, "note")


def transfer(group: Group, source: int, lacking: Sequence[int], state: Packed | None) -> Checkpoint | None:
    """Send the `state` of the member `source` to those `lacking`, and return it there; other members pass None.

    Every member calls it, and there is a barrier after each piece, so that no member waits longer than one piece takes,
    however large the state is.
    """
    sizes = torch.zeros(3, dtype=torch.int64, device=group.device)
    if state is not None:
        sizes += torch.tensor([len(each) for each in (state.head, state.model, state.training)], device=group.device)
    group.broadcast(sizes, source)
    lacks = group.rank in lacking
    if state is None:
        state = Packed(*(torch.empty(size if lacks else 0, dtype=torch.uint8) for size in sizes.tolist()))
    for part, size in zip((state.head, state.model, state.training), sizes.tolist(), strict=True):
        for first in range(0, size, PIECE_BYTES):
            piece = part[first : first + PIECE_BYTES]
            for rank in lacking:
                if group.rank == source:
                    group.send(piece.to(group.device), rank)
                elif group.rank == rank:
                    came = piece.to(group.device)
                    group.receive(came, source)
                    piece.copy_(came)
                group.barrier()
    return unpacked(state) if lacks else None


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
    found = torch.zeros(group.world, dtype=torch.int64, device=group.device)
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
) -> bool:
    """Send the state of the member `source` to all members with another one, or none; returns whether all are then
    equal.

    Every member calls it. `capture` returns the state if this member is the source; `take` loads it if this member
    lacks it, and returns the resulting network. `hashed` is what must be equal.
    """
    own = NEWCOMER if network is None else hashed(network)
    found = digests(group, own)
    lacking = [rank for rank, each in enumerate(found) if each != found[source]]
    if not lacking:
        return True
    if group.rank == source:
        transfer(group, source, lacking, packed(capture()))
    elif (state := transfer(group, source, lacking, None)) is not None:
        network = None  # the previous one, which `take` drops
        own = hashed(take(state))
    return len(set(digests(group, own))) == 1


def _broadcast(group: Group, code: Code, content: Tensor) -> None:
    Command(code, size=len(content)).send(group)
    group.broadcast(content.to(group.device), 0)
