"""Transfer of a training state from one member to others: only missing tensors, straight from memory into memory.

The source announces names, types, shapes and hashes of its tensors. A member that has a tensor with the same hash,
under any name, keeps its own: a grown model differs from the previous one by its new layers. Tensors are sent from
where the source trains them, and arrive where the member will train them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Final

import torch
import xxhash
from torch import Tensor

from espalier_core.base import Record
from espalier_core.files.documents import DocumentError, dumps
from espalier_trainer.checkpoints.document import Checkpoint, CheckpointState, DocumentT, loads_grown
from espalier_trainer.elastic.group import PIECE_BYTES, Group, Sending
from espalier_trainer.errors import CheckpointMismatchError

SMALL_BYTES: Final = 1 << 16
"""Size in bytes below which tensors are sent together in one piece; a model has hundreds of them."""


Place = tuple[bool, str]
"""Whether a tensor belongs to the training state (the optimizer, for one) rather than the model, and its name."""


class Entry(Record):
    """A tensor of a state, without its values."""

    name: str
    training: bool
    dtype: str
    shape: tuple[int, ...]
    hash: str = ""
    """Hash of its bytes; empty where none is needed."""

    @property
    def type(self) -> torch.dtype:
        """Type of its numbers. Raises `ValueError` where torch has no such type."""
        found = getattr(torch, self.dtype, None)
        if not isinstance(found, torch.dtype):
            raise ValueError(f"{self.name}: {self.dtype!r} is not a type of tensors")
        return found

    @property
    def place(self) -> Place:
        """Part of the state and name of the tensor."""
        return self.training, self.name

    @property
    def bytes(self) -> int:
        """Size in bytes."""
        return torch.Size(self.shape).numel() * self.type.itemsize


class Head(Record):
    """All of a state except the tensors' values."""

    state: CheckpointState
    entries: tuple[Entry, ...]

    @classmethod
    def of(cls, checkpoint: Checkpoint, *, hashed: bool) -> Head:
        """Return the head of a checkpoint."""
        return cls(
            state=checkpoint.state,
            entries=tuple(
                Entry(
                    name=name,
                    training=training,
                    dtype=str(tensor.dtype).removeprefix("torch."),
                    shape=tuple(tensor.shape),
                    hash=_hash(tensor) if hashed else "",
                )
                for training, name, tensor in _tensors(checkpoint)
            ),
        )


def deliver(
    group: Group,
    source: int,
    takers: Sequence[int],
    checkpoint: Checkpoint | None,
    held: Checkpoint | None = None,
    *,
    hashed: bool = True,
    spare: Mapping[Place, Tensor] | None = None,
) -> Checkpoint | None:
    """Send the `checkpoint` of the member `source` to the `takers`; return it there, elsewhere None.

    Every member calls it. `held` is a taker's current state; tensors of it become part of the result. Without `hashed`,
    which must be equal on all, everything is sent. `spare` are tensors of a taker that may be overwritten, and are if
    they belong to the same model: filling new memory takes as long as receiving its content. There is a barrier after
    each piece, so that no member waits longer than one piece takes, however large the state is. Raises
    `GroupBrokenError`, and `CheckpointMismatchError` at a taker that cannot read the state.
    """
    takes = group.rank in takers
    own = (
        _HeldTensors.of(held) if held is not None and takes and hashed else _HeldTensors({}, {})
    )  # hashed while the source hashes
    head = _announced(group, source, None if checkpoint is None else Head.of(checkpoint, hashed=hashed))
    room = _ReceiveBuffer(head.entries, own, {} if spare is None else _fitting(head.entries, spare))
    needed = torch.zeros(group.world, len(head.entries), dtype=torch.int32)
    if takes:
        needed[group.rank] = torch.tensor([tensor is None for tensor in room.tensors], dtype=torch.int32)
    group.all_reduce(needed)
    sent = None if checkpoint is None else [tensor.detach() for _, _, tensor in _tensors(checkpoint)]
    for taker, row in zip(takers, needed[list(takers)].tolist(), strict=True):
        wanted = [place for place, lacks in enumerate(row) if lacks]
        small = [place for place in wanted if head.entries[place].bytes < SMALL_BYTES]
        large = [place for place in wanted if head.entries[place].bytes >= SMALL_BYTES]
        if group.rank == source and sent is not None:
            parts = [_flat([sent[place] for place in small]), *(_bytes(sent[place]) for place in large)]
        elif group.rank == taker:
            parts = room.parts(small, large)
        else:
            parts = []
        sizes = [sum(head.entries[place].bytes for place in small), *(head.entries[place].bytes for place in large)]
        _stream(group, source, taker, parts, sizes)
        if group.rank == taker:
            room.place_small(small, parts[0])
    return room.checkpoint(head.state) if takes else None


def _announced(group: Group, source: int, head: Head | None) -> Head:
    """Return the source's head."""
    content = group.broadcast_document(None if head is None else dumps(head, compact=True).encode(), source)
    return head or received(content, Head)


def received(content: bytes, model: type[DocumentT]) -> DocumentT:
    """Parse a document of the leader, in UTF-8. Raises `CheckpointMismatchError` where it cannot be read."""
    source = "the training state of the leader"
    try:
        return loads_grown(content.decode(), model, source)
    except DocumentError as error:
        raise CheckpointMismatchError(f"{error}; run the same Espalier in all workers of a job") from error


def _stream(group: Group, source: int, taker: int, parts: Sequence[Tensor], sizes: Sequence[int]) -> None:
    """Send the `parts`, flat and of these sizes in bytes, from the source to the taker. Each piece is sent while all
    wait for the one before it.
    """
    cuts = [(part, first) for part, size in enumerate(sizes) for first in range(0, size, PIECE_BYTES)]
    flight: tuple[Sending, Tensor, Tensor] | None = None
    for number in range(len(cuts) + 1):
        begun = None
        if number < len(cuts) and group.rank in (source, taker):
            part, first = cuts[number]
            piece = parts[part][first : first + PIECE_BYTES]
            moved = piece.cpu()
            begin = group.sending_to if group.rank == source else group.receiving_from
            begun = begin(moved, taker if group.rank == source else source), piece, moved
        if flight is not None:
            sending, piece, moved = flight
            sending.wait()
            if group.rank == taker and moved is not piece:
                piece.copy_(moved)
        if number:
            group.barrier()
        flight = begun


@dataclass(frozen=True, slots=True)
class _HeldTensors:
    """A taker's current tensors and their hashes, by place."""

    tensors: dict[Place, Tensor]
    hashes: dict[Place, str]

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> _HeldTensors:
        tensors = {(training, name): tensor.detach() for training, name, tensor in _tensors(checkpoint)}
        return cls(tensors, {place: _hash(tensor) for place, tensor in tensors.items()})


@dataclass
class _ReceiveBuffer:
    """Memory of a taker for received tensors, on the CPU: a device may be nearly full."""

    entries: Sequence[Entry]
    held: InitVar[_HeldTensors]
    spare: Mapping[Place, Tensor]
    tensors: list[Tensor | None] = field(init=False)

    def __post_init__(self, held: _HeldTensors) -> None:
        """Keep tensors that the taker has already."""
        self.tensors = [None] * len(self.entries)
        names = {entry.place for entry in self.entries}
        # A tensor keeps its memory under its name, or under a new one if its name is gone; others get a copy.
        free = {found: place for place, found in held.hashes.items() if place not in names}
        copies = {found: place for place, found in held.hashes.items()}
        for number, entry in enumerate(self.entries):
            place = entry.place
            if held.hashes.get(place) == entry.hash:
                self.tensors[number] = held.tensors[place].cpu()
            elif entry.hash in free:
                self.tensors[number] = held.tensors[free.pop(entry.hash)].cpu()
            elif entry.hash in copies:
                self.tensors[number] = held.tensors[copies[entry.hash]].to("cpu", copy=True)

    def parts(self, small: Sequence[int], large: Sequence[int]) -> list[Tensor]:
        """Return flat memory for the received pieces: one for all small tensors, then one for each large tensor."""
        found = [torch.empty(sum(self.entries[place].bytes for place in small), dtype=torch.uint8)]
        for place in large:
            entry = self.entries[place]
            tensor = self.spare.get(entry.place)
            tensor = torch.empty(entry.shape, dtype=entry.type) if tensor is None else tensor
            self.tensors[place] = tensor
            found.append(_bytes(tensor))
        return found

    def place_small(self, small: Sequence[int], content: Tensor) -> None:
        """Copy the small tensors out of the received piece: copies, as one of them may outlive the others."""
        first = 0
        for place in small:
            entry = self.entries[place]
            tensor = self.tensors[place] = torch.empty(entry.shape, dtype=entry.type)
            _bytes(tensor).copy_(content[first : first + entry.bytes])
            first += entry.bytes

    def checkpoint(self, state: CheckpointState) -> Checkpoint:
        """Return the received state."""
        found: tuple[dict[str, Tensor], dict[str, Tensor]] = ({}, {})
        for entry, tensor in zip(self.entries, self.tensors, strict=True):
            if tensor is None:
                raise ValueError(f"{entry.name} has not arrived")
            found[entry.training][entry.name] = tensor
        return Checkpoint(state, *found)


def _tensors(checkpoint: Checkpoint) -> Iterator[tuple[bool, str, Tensor]]:
    for training, tensors in ((False, checkpoint.model), (True, checkpoint.training)):
        for name, tensor in tensors.items():
            yield training, name, tensor


def _fitting(entries: Sequence[Entry], spare: Mapping[Place, Tensor]) -> dict[Place, Tensor]:
    """Return the spare tensors that entries of the same names fit into; none for another model."""
    found: dict[Place, Tensor] = {}
    for entry in entries:
        tensor = spare.get(entry.place)
        if tensor is not None and tensor.is_contiguous() and (tensor.shape, tensor.dtype) == (entry.shape, entry.type):
            found[entry.place] = tensor.detach()
        elif not entry.training:
            return {}
    # Tied weights share memory, and would be received into it twice.
    pointers = Counter(tensor.data_ptr() for tensor in found.values())
    return {place: tensor for place, tensor in found.items() if pointers[tensor.data_ptr()] == 1}


def _bytes(tensor: Tensor) -> Tensor:
    """Return the bytes of a tensor, in order: a view of it if it is contiguous."""
    return tensor.detach().contiguous().view(-1).view(torch.uint8)


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    parts = [_bytes(tensor).cpu() for tensor in tensors]
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.uint8)


def _hash(tensor: Tensor) -> str:
    """Return 128 bits of XXH3 over type, shape and bytes: against accidents, not attacks."""
    about = f"{tensor.dtype}{tuple(tensor.shape)}".encode()
    found = xxhash.xxh3_128(about)
    found.update(_bytes(tensor).cpu().numpy().data)
    return found.hexdigest()
