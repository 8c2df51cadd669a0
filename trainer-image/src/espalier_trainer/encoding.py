"""Conversion of an object's state to JSON types and tensors, and back."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any, Final

import numpy as np
from torch import Tensor

_COUNTER, _FLOAT, _ITEMS, _TUPLE, _TENSOR = "counter", "float", "items", "tuple", "tensor"
PREFIX: Final = "others."
"""Prefix of the tensors' names in `training.safetensors`."""


class EncodingError(TypeError):
    """A value has no counterpart in JSON. The message is the name of its type."""


def encoded(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Return `value` as JSON types that `decoded` converts back; its tensors are put into `tensors`.

    Raises `EncodingError` if that is impossible.
    """
    if isinstance(value, Tensor):
        name = str(len(tensors))
        tensors[name] = value.detach()
        return {_TENSOR: name}
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return {_FLOAT: repr(value)}  # JSON cannot represent it
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list):
        return [encoded(each, tensors) for each in value]
    if isinstance(value, tuple):
        return {_TUPLE: [encoded(each, tensors) for each in value]}
    if isinstance(value, dict):
        kind = _COUNTER if isinstance(value, Counter) else _ITEMS
        pairs = [[encoded(key, tensors), encoded(each, tensors)] for key, each in value.items()]
        return {kind: pairs}
    raise EncodingError(type(value).__name__)


def decoded(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Return the argument of `encoded`. Raises `KeyError` where a tensor is missing."""
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
