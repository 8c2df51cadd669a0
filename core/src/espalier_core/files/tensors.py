"""Checks of the tensors in a policy's file, whichever library read them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple


class TensorFacts(NamedTuple):
    """What is checked of a tensor."""

    shape: tuple[int, ...]
    dtype: str
    finite: Callable[[], bool]
    """Asked where the type is right: libraries do not know it of every type."""


def fault_of(found: Mapping[str, TensorFacts], expected: Mapping[str, tuple[int, ...]], dtype: str) -> str:
    """Return what is wrong with tensors that must have these names, shapes, type and finite values; empty: nothing.

    The text begins with the tensor, and has to be put after the name of the file.
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
