"""The state of any object as JSON types and tensors, and back."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any, Final

from torch import Tensor

from espalier_trainer.errors import OwnLoopError

_COUNTER, _FLOAT, _ITEMS, _TUPLE, _TENSOR = "counter", "float", "items", "tuple", "tensor"
PREFIX: Final = "others."
"""Of their tensors in `training.safetensors`."""


def encoded(value: Any, owner: str, tensors: dict[str, Tensor]) -> Any:
    """Return `value` as JSON types that `decoded` converts back; its tensors are put into `tensors`.

    Raises `OwnLoopError` if that is impossible.
    """
    if isinstance(value, Tensor):
        name = str(len(tensors))
        tensors[name] = value.detach()
        return {_TENSOR: name}
    if isinstance(value, float) and not math.isfinite(value):
        return {_FLOAT: repr(value)}  # JSON cannot represent it
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list):
        return [encoded(each, owner, tensors) for each in value]
    if isinstance(value, tuple):
        return {_TUPLE: [encoded(each, owner, tensors) for each in value]}
    if isinstance(value, dict):
        kind = _COUNTER if isinstance(value, Counter) else _ITEMS
        pairs = [[encoded(key, owner, tensors), encoded(each, owner, tensors)] for key, each in value.items()]
        return {kind: pairs}
    raise OwnLoopError(
        f"join: the state of {owner} holds a {type(value).__name__}; only tensors, numbers, texts, lists and "
        "dictionaries are given to other workers: leave it out of join where all workers have it alike"
    )


def decoded(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Return what `encoded` was given. Raises `KeyError` where a tensor is missing."""
    if isinstance(value, list):
        return [decoded(each, tensors) for each in value]
    if isinstance(value, dict):
        ((kind, inner),) = value.items()
        if kind == _TENSOR:
            return tensors[inner]
        if kind == _FLOAT:
            return float(inner)
        if kind == _TUPLE:
            return tuple(decoded(each, tensors) for each in inner)
        pairs = {decoded(key, tensors): decoded(each, tensors) for key, each in inner}
        return Counter(pairs) if kind == _COUNTER else pairs
    return value
