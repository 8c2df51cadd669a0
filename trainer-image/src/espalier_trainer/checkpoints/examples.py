"""The shape of a model's input: enough to run the model once, without anybody's data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from pydantic import ValidationError, field_validator
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten, treespec_dumps, treespec_loads

from espalier_core.base import Record
from espalier_trainer.net2net.modules import ExampleInput


class ExampleShape(Record):
    """Shape and type of a batch of two inputs."""

    shape: tuple[int, ...]
    dtype: str
    """As torch names it, without `torch.`."""
    fill: int | bool = 0
    """All entries, where they are no floating-point numbers."""

    @field_validator("dtype")
    @classmethod
    def _known(cls, value: str) -> str:
        if not isinstance(getattr(torch, value, None), torch.dtype):
            raise ValueError(f"is {value!r}, which is not a type of tensors")
        return value

    @classmethod
    def of(cls, example: Tensor) -> ExampleShape:
        """Return the shape and type of `example`."""
        return cls(shape=tuple(example.shape), dtype=str(example.dtype).removeprefix("torch."))

    @property
    def rows(self) -> int:
        """Number of its examples."""
        return self.shape[0]

    def of_rows(self, rows: int) -> ExampleShape:
        """Return the same with another number of examples."""
        return self.model_copy(update={"shape": (rows, *self.shape[1:])})

    def make(self) -> Tensor:
        """Return an input: random numbers, always the same; `fill` where they are no floating-point numbers."""
        dtype: torch.dtype = getattr(torch, self.dtype)
        if not dtype.is_floating_point:
            return torch.full(self.shape, self.fill, dtype=dtype)
        return torch.rand(self.shape, generator=torch.Generator().manual_seed(0)).to(dtype)


class ExampleConstant(Record):
    """An argument that is no tensor."""

    value: bool | int | float | str | None


class ExampleArguments(Record):
    """The shapes of several inputs: positional or named arguments of a forward, perhaps in containers."""

    structure: str
    """Of the arguments, as torch's pytree writes it."""
    leaves: tuple[ExampleShape | ExampleConstant, ...]
    """What is in it, in order."""

    @property
    def rows(self) -> int:
        """Number of its examples: the length of its first tensor."""
        return next(each.rows for each in self.leaves if isinstance(each, ExampleShape) and each.shape)

    def of_rows(self, rows: int) -> ExampleArguments:
        """Return the same with another number of examples, in every tensor with as many rows as the first."""
        leaves = tuple(
            each.of_rows(rows) if isinstance(each, ExampleShape) and each.shape[:1] == (self.rows,) else each
            for each in self.leaves
        )
        return self.model_copy(update={"leaves": leaves})

    def make(self) -> ExampleInput:
        """Return the arguments, with tensors as `ExampleShape.make` makes them."""
        made: ExampleInput = self.put(
            [each.make() if isinstance(each, ExampleShape) else each.value for each in self.leaves]
        )
        return made

    def put(self, leaves: Sequence[Any]) -> Any:
        """Return the arguments with these leaves."""
        return tree_unflatten(list(leaves), treespec_loads(self.structure))


Example = ExampleShape | ExampleArguments


def known(example: ExampleInput) -> Example | None:
    """Return what is kept of an example input; None where it has no rows, or holds what is neither tensor nor value.

    Of integers the greatest is kept, which is as good an index, length or mask as they are.
    """
    if isinstance(example, Tensor):
        return _shape(example) if example.shape else None
    leaves, structure = tree_flatten(example)
    try:
        found = ExampleArguments(structure=treespec_dumps(structure), leaves=tuple(map(_leaf, leaves)))
    except (ValidationError, NotImplementedError, TypeError):
        return None
    return found if any(isinstance(each, ExampleShape) and each.shape for each in found.leaves) else None


def _leaf(value: Any) -> ExampleShape | ExampleConstant:
    return _shape(value) if isinstance(value, Tensor) else ExampleConstant(value=value)


def _shape(value: Tensor) -> ExampleShape:
    shape = ExampleShape.of(value)
    if not value.numel() or value.is_floating_point() or value.is_complex():
        return shape
    # Of unsigned ones torch computes no maximum.
    greatest = value.max() if value.dtype is torch.bool else value.long().max()
    return shape.model_copy(update={"fill": greatest.item()})
