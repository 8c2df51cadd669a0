"""A checkpoint as three flat tensors, to be sent: packing copies its bytes once, unpacking does not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from espalier_api.base import Record
from espalier_api.documents import dumps, loads
from espalier_trainer.checkpoint import Checkpoint, CheckpointState

_ALIGNED: Final = 64
"""Bytes; a view as another type needs a multiple of its size."""


class _Entry(Record):
    """A tensor in one of the two."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def type(self) -> torch.dtype:
        found = getattr(torch, self.dtype, None)
        if not isinstance(found, torch.dtype):
            raise ValueError(f"{self.name}: {self.dtype!r} is no type of tensors")
        return found

    @property
    def bytes(self) -> int:
        return torch.Size(self.shape).numel() * self.type.itemsize


class _Head(Record):
    """All of a checkpoint but its numbers."""

    state: CheckpointState
    model: tuple[_Entry, ...]
    training: tuple[_Entry, ...]


@dataclass(frozen=True, slots=True)
class Packed:
    """Three flat tensors of bytes, on the CPU."""

    head: Tensor
    model: Tensor
    training: Tensor
    """Apart from the model's, which are copied and dropped: an optimizer keeps these."""

    @classmethod
    def allocate(cls, head: Tensor) -> Packed:
        """Return room for what `head` announces. Raises `ValueError` where it announces nothing that can be."""
        read = _head(head)
        return cls(head, *(torch.empty(_places(each)[1], dtype=torch.uint8) for each in (read.model, read.training)))


def packed(checkpoint: Checkpoint) -> Packed:
    """Return a copy of the checkpoint. Tensors that share memory (tied weights) are written out each."""
    head = _Head(state=checkpoint.state, model=_entries(checkpoint.model), training=_entries(checkpoint.training))
    content = torch.frombuffer(bytearray(dumps(head).encode()), dtype=torch.uint8)
    return Packed(content, _flat(checkpoint.model, head.model), _flat(checkpoint.training, head.training))


def unpacked(content: Packed) -> Checkpoint:
    """Return the checkpoint, whose tensors are views of `content`. Raises `ValueError` where that is none.

    Single numbers are copies: an optimizer may keep its count of steps and nothing else, which would hold all.
    """
    head = _head(content.head)
    training = _views(content.training, head.training)
    training = {name: each.clone() if each.numel() == 1 else each for name, each in training.items()}
    return Checkpoint(head.state, _views(content.model, head.model), training)


def _head(content: Tensor) -> _Head:
    return loads(content.numpy().tobytes().decode(), _Head, "a packed checkpoint")


def _entries(tensors: dict[str, Tensor]) -> tuple[_Entry, ...]:
    return tuple(
        _Entry(name=name, dtype=str(tensor.dtype).removeprefix("torch."), shape=tuple(tensor.shape))
        for name, tensor in tensors.items()
    )


def _places(entries: tuple[_Entry, ...]) -> tuple[list[int], int]:
    """Return where each begins, and the length of all."""
    begins, end = [], 0
    for entry in entries:
        begins.append(end)
        end += -(-entry.bytes // _ALIGNED) * _ALIGNED
    return begins, end


def _flat(tensors: dict[str, Tensor], entries: tuple[_Entry, ...]) -> Tensor:
    flat = torch.empty(_places(entries)[1], dtype=torch.uint8)
    for name, view in _views(flat, entries).items():
        view.copy_(tensors[name].detach())
    return flat


def _views(flat: Tensor, entries: tuple[_Entry, ...]) -> dict[str, Tensor]:
    begins, length = _places(entries)
    if len(flat) != length:
        raise ValueError(f"a packed checkpoint has {len(flat)} bytes of tensors, not {length}")
    return {
        entry.name: flat[begin : begin + entry.bytes].view(entry.type).view(entry.shape)
        for begin, entry in zip(begins, entries, strict=True)
    }
