"""Checks of the tensors in a policy's file, independent of the library that read them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple


class TensorFacts(NamedTuple):
    """The properties of a tensor that are checked."""

    shape: tuple[int, ...]
    dtype: str
    finite: Callable[[], bool]
    """Called only for the right type: libraries do not support it for every type."""


def fault_of(found: Mapping[str, TensorFacts], expected: Mapping[str, tuple[int, ...]], dtype: str) -> str:
    """Return the fault of tensors that must have these names, shapes, type and finite values; '' if there is none.

    The text begins with the tensor; put it after the name of the file.
    """
    for name, shape in expected.items():
        if name not in found:
            return f"tensor {name!r} is missing"
        tensor = found[name]
        if tensor.shape != shape:
            return f"tensor {name!r} has shape {list(tensor.shape)}, where {list(shape)} is expected"
        if tensor.dtype != dtype:
            return f"tensor {name!r} is {tensor.dtype}, where {dtype} is expected"
        if not tensor.finite():
            return f"tensor {name!r} holds values that are not finite"
    surplus = sorted(found.keys() - expected.keys())
    return f"tensor {surplus[0]!r} does not belong to this network" if surplus else ""
