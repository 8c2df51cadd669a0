"""The shape of a model's input: enough to run the model once, without user data."""

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
    """Name of the type in torch, without `torch.`."""
    fill: int | bool = 0
    """Value of all entries, where they are not floating-point numbers."""

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
        """Return the same shape with another number of examples."""
        return self.model_copy(update={"shape": (rows, *self.shape[1:])})

    def make(self) -> Tensor:
        """Return an input: fixed random numbers, or `fill` where entries are not floating-point numbers."""
        dtype: torch.dtype = getattr(torch, self.dtype)
        if not dtype.is_floating_point:
            return torch.full(self.shape, self.fill, dtype=dtype)
        return torch.rand(self.shape, generator=torch.Generator().manual_seed(0)).to(dtype)


class ExampleConstant(Record):
    """An argument that is not a tensor."""

    value: bool | int | float | str | None


class ExampleArguments(Record):
    """The shapes of several inputs: positional or named arguments of a forward, possibly in containers."""

    structure: str
    """Structure of the arguments, in the format of torch's pytree."""
    leaves: tuple[ExampleShape | ExampleConstant, ...]
    """Tensors and constants in the structure, in order."""

    @property
    def rows(self) -> int:
        """Number of its examples: the length of its first tensor."""
        return next(each.rows for each in self.leaves if isinstance(each, ExampleShape) and each.shape)

    def of_rows(self, rows: int) -> ExampleArguments:
        """Return the same arguments with another number of examples, in every tensor with as many rows as the first."""
        leaves = tuple(
            each.of_rows(rows) if isinstance(each, ExampleShape) and each.shape[:1] == (self.rows,) else each
            for each in self.leaves
        )
        return self.model_copy(update={"leaves": leaves})

    def make(self) -> ExampleInput:
        """Return the arguments, with tensors from `ExampleShape.make`."""
        made: ExampleInput = self.put(
            [each.make() if isinstance(each, ExampleShape) else each.value for each in self.leaves]
        )
        return made

    def put(self, leaves: Sequence[Any]) -> Any:
        """Return the arguments with these leaves."""
        return tree_unflatten(list(leaves), treespec_loads(self.structure))


Example = ExampleShape | ExampleArguments


def known(example: ExampleInput) -> Example | None:
    """Return the stored form of an example input; None where it has no rows, or holds neither tensors nor constants.

    Of integers the greatest is stored, which is as good an index, length or mask as the others.
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
    # torch computes no maximum of unsigned integers.
    greatest = value.max() if value.dtype is torch.bool else value.long().max()
    return shape.model_copy(update={"fill": greatest.item()})
