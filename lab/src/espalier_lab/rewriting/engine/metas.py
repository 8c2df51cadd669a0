"""Shapes, types and layouts of nodes' results, found by running them on tensors without data."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from espalier_lab.rewriting.engine.graph import IMAGE_DIMENSIONS, Attributes, Meta, Value
from espalier_lab.rewriting.engine.operators import spelled


def value_of(tensor: Tensor) -> Value:
    """Return the known properties of a tensor."""
    return Value(tuple(tensor.shape), tensor.dtype, _lies_last(tensor), tensor.requires_grad)


def stand_in(value: Value) -> Tensor:
    """Return a tensor without data that has the properties of `value`, except its gradient."""
    tensor = torch.empty(value.shape, dtype=value.dtype, device="meta")
    return tensor.contiguous(memory_format=torch.channels_last) if value.channels_last else tensor


def meta_of(result: Any, *, grad: bool) -> Meta:
    """Return the meta of a node's result; `grad`: one of its inputs has a gradient.

    Raise `TypeError` for a result that cannot be compared with another: neither tensors, numbers nor tuples or
    dictionaries of them.
    """
    if isinstance(result, Tensor):
        floating = result.is_floating_point() or result.is_complex()
        return Value(tuple(result.shape), result.dtype, _lies_last(result), grad and floating)
    if isinstance(result, Mapping):
        return tuple((key, meta_of(item, grad=grad)) for key, item in result.items())
    if isinstance(result, tuple | list):
        return tuple(meta_of(item, grad=grad) for item in result)
    if not isinstance(result, Hashable):
        raise TypeError(f"a part of the model returns {type(result).__name__}")
    return result


def real_of(meta: Any) -> Any:
    """Return a stand-in for the result of a node with this meta: tensors without data, numbers, tuples."""
    if isinstance(meta, Value):
        return stand_in(meta)
    if isinstance(meta, tuple):
        return tuple(real_of(item) for item in meta)
    return meta


def has_grad(meta: Any) -> bool:
    """Return whether a gradient flows through one of the tensors of a meta."""
    if isinstance(meta, Value):
        return meta.grad
    return isinstance(meta, tuple) and any(has_grad(item) for item in meta)


@lru_cache(maxsize=100_000)
def inferred(operator: str, attributes: Attributes, inputs: tuple[Meta, ...]) -> Meta:
    """Return the meta of a known operator's result. Raise torch's error for inputs that do not fit."""
    function, arguments, settings = spelled(operator, [real_of(meta) for meta in inputs], dict(attributes))
    with torch.no_grad():
        result = function(*arguments, **settings)
    meta = meta_of(result, grad=any(map(has_grad, inputs)))
    # A convolution without data returns contiguous channels, one with data the layout of its image.
    return laid_out(meta, inputs) if operator == "conv2d" else meta


@lru_cache(maxsize=100_000)
def laid_out(meta: Meta, inputs: tuple[Meta, ...]) -> Meta:
    """Return the meta of an unknown operation on inputs with the layouts of `inputs`: it has the first one's layout."""
    if not isinstance(meta, Value) or not meta.is_images:
        return meta
    images = [one for one in inputs if isinstance(one, Value) and one.is_images]
    last = bool(images) and images[0].channels_last and _lies_last(stand_in(replace(meta, channels_last=True)))
    return replace(meta, channels_last=last)


def _lies_last(tensor: Tensor) -> bool:
    """Return whether a computed tensor lies channels-last, even if it has gaps, as for a part of its channels."""
    if tensor.dim() != IMAGE_DIMENSIONS:
        return False
    like = torch.empty_like(tensor, device="meta")
    return like.is_contiguous(memory_format=torch.channels_last) and not like.is_contiguous()
