"""The operators of the rules, and their calls in torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

Spelled = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]
"""A function with its positional and keyword arguments."""


def channels_last(tensor: Tensor) -> Tensor:
    """Return a tensor [N, C, H, W] whose channels lie together in memory."""
    return tensor.contiguous(memory_format=torch.channels_last)


def channels_first(tensor: Tensor) -> Tensor:
    """Return a tensor [N, C, H, W] that lies in memory in this order."""
    return tensor.contiguous()


def subtracted_from(tensor: Tensor, scalar: float) -> Tensor:
    """Return scalar - tensor."""
    return scalar - tensor


def dividing(tensor: Tensor, scalar: float) -> Tensor:
    """Return scalar / tensor."""
    return scalar / tensor


def identity_kernel(weight: Tensor) -> Tensor:
    """Return the weight of a convolution that returns its input: 1 in the middle of weight [C, C, odd, odd], else 0."""
    kernel = torch.zeros_like(weight)
    height, width = weight.shape[2:]
    kernel[:, :, height // 2, width // 2].fill_diagonal_(1)
    return kernel


_PLAIN: Final[Mapping[str, Callable[..., Any]]] = {
    "matmul": torch.matmul,
    "conv2d": functional.conv2d,
    "linear": functional.linear,
    "relu": functional.relu,
    "gelu": functional.gelu,
    "silu": functional.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "erf": torch.erf,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "softmax": functional.softmax,
    "mean": torch.mean,
    "var": torch.var,
    "flatten": torch.flatten,
    "transpose": torch.transpose,
    "narrow": torch.narrow,
    "pad": functional.pad,
    "adaptive_avg_pool2d": functional.adaptive_avg_pool2d,
    "interpolate": functional.interpolate,
    "attention": functional.scaled_dot_product_attention,
    "channels_first": channels_first,
    "channels_last": channels_last,
    "identity_kernel": identity_kernel,
    "logical_not": torch.logical_not,
    "masked_fill": torch.masked_fill,
}
"""Called as `function(*tensors, **attributes)`."""

_SCALED: Final[Mapping[str, Callable[..., Any]]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "pow": torch.pow,
    "rsub": subtracted_from,
    "rdiv": dividing,
}
"""Operators on two tensors, or on one and the attribute `scalar`."""

OPERATORS: Final = frozenset(_PLAIN) | frozenset(_SCALED) | {"cat", "layer_norm"}

VIEWS: Final = frozenset({"flatten", "transpose", "narrow"})
"""Operators whose output may share its memory with their input."""


def spelled(operator: str, inputs: Sequence[Any], attributes: Mapping[str, Any]) -> Spelled:
    """Return the call of torch for an operator; `inputs` are tensors, or stand-ins for them."""
    if operator in _SCALED:
        operands = (*inputs, attributes["scalar"]) if "scalar" in attributes else tuple(inputs)
        return _SCALED[operator], operands, {}
    if operator == "cat":
        return torch.cat, (list(inputs), attributes["dim"]), {}
    if operator == "layer_norm":
        weights = (*inputs[1:], None, None)[:2]
        return functional.layer_norm, (inputs[0], attributes["normalized_shape"], *weights, attributes["eps"]), {}
    return _PLAIN[operator], tuple(inputs), dict(attributes)
