"""The shape of a model's input: enough to run the model once, without anybody's data."""

from __future__ import annotations

import torch
from pydantic import Field, field_validator
from torch import Tensor

from espalier_api.base import Record


class ExampleShape(Record):
    """Shape and type of a batch of two inputs."""

    shape: tuple[int, ...] = Field(min_length=1)
    dtype: str
    """As torch names it, without `torch.`."""

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

    def make(self) -> Tensor:
        """Return an input: random numbers, always the same; zeros where they are no floating-point numbers."""
        dtype: torch.dtype = getattr(torch, self.dtype)
        if not dtype.is_floating_point:
            return torch.zeros(self.shape, dtype=dtype)
        return torch.rand(self.shape, generator=torch.Generator().manual_seed(0)).to(dtype)
