"""Calls of torch, read as the operators of the rules: a layer, its function and its method are the same."""

from __future__ import annotations

import math
import operator as python
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _NormBase

Read = tuple[str, tuple[Any, ...], dict[str, Any]]
"""Operator, tensor inputs (or stand-ins for them), attributes."""

Reader = Callable[..., Read | None]
"""Takes the arguments of a call; returns None for a call that the operator does not cover."""


def _number(value: Any) -> bool:
    return type(value) in (int, float)


def _pair(value: Any) -> tuple[int, int] | None:
    if type(value) is int:
        return (value, value)
    return (value[0], value[1]) if isinstance(value, tuple | list) and [*map(type, value)] == [int, int] else None


def _binary(name: str, reverse: str | None) -> Reader:
    """Return the reader of a function of two operands; one may be a number (`reverse`: its name if the first is)."""

    def read(first: Any, second: Any) -> Read | None:
        if _number(second):
            return name, (first,), {"scalar": float(second)} if name != "pow" else {"scalar": second}
        if _number(first):
            return None if reverse is None else (reverse, (second,), {"scalar": float(first)})
        return name, (first, second), {}

    return read


def _unary(name: str) -> Reader:
    def read(tensor: Any, inplace: bool = False) -> Read | None:
        return name, (tensor,), {}

    return read


def _gelu(tensor: Any, approximate: str = "none") -> Read | None:
    return "gelu", (tensor,), {"approximate": approximate}


def _softmax(tensor: Any, dim: Any = None, _stacklevel: int = 3, dtype: Any = None) -> Read | None:
    return ("softmax", (tensor,), {"dim": dim}) if type(dim) is int and dtype is None else None


def _softmax_of_torch(tensor: Any, dim: Any = None, dtype: Any = None) -> Read | None:
    """Read the function and the method, whose third argument is the type; `functional` has it at another place."""
    return _softmax(tensor, dim, dtype=dtype)


def _mean(tensor: Any, dim: Any = None, keepdim: bool = False) -> Read | None:
    dims = _dims(dim)
    return None if dims is None else ("mean", (tensor,), {"dim": dims, "keepdim": keepdim})


def _var(
    tensor: Any, dim: Any = None, unbiased: Any = None, keepdim: bool = False, *, correction: Any = None
) -> Read | None:
    dims = _dims(dim)
    if dims is None or not isinstance(unbiased, bool | None) or not isinstance(correction, int | None):
        return None
    less = correction if correction is not None else int(unbiased is not False)
    return "var", (tensor,), {"dim": dims, "correction": int(less), "keepdim": keepdim}


def _dims(dim: Any) -> tuple[int, ...] | None:
    if type(dim) is int:
        return (dim,)
    return tuple(dim) if isinstance(dim, tuple | list) and dim and all(type(one) is int for one in dim) else None


def _flatten(tensor: Any, start_dim: int = 0, end_dim: int = -1) -> Read | None:
    return "flatten", (tensor,), {"start_dim": start_dim, "end_dim": end_dim}


def _transpose(tensor: Any, dim0: Any, dim1: Any) -> Read | None:
    simple = type(dim0) is int and type(dim1) is int
    return ("transpose", (tensor,), {"dim0": dim0, "dim1": dim1}) if simple else None


def _linear(tensor: Any, weight: Any, bias: Any = None) -> Read | None:
    return "linear", (tensor, weight) if bias is None else (tensor, weight, bias), {}


def _conv2d(
    tensor: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> Read | None:
    settings = {"stride": _pair(stride), "padding": _pair(padding), "dilation": _pair(dilation), "groups": groups}
    if None in settings.values():
        return None
    return "conv2d", (tensor, weight) if bias is None else (tensor, weight, bias), settings


def _layer_norm(
    tensor: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Read | None:
    shape = _dims(normalized_shape if not isinstance(normalized_shape, torch.Size) else tuple(normalized_shape))
    weights = tuple(one for one in (weight, bias) if one is not None)
    if shape is None or (weight is None and bias is not None):
        return None
    return "layer_norm", (tensor, *weights), {"normalized_shape": shape, "eps": eps}


def _cat(tensors: Any, dim: Any = 0) -> Read | None:
    return ("cat", tuple(tensors), {"dim": dim}) if isinstance(tensors, tuple | list) and type(dim) is int else None


def _pad(tensor: Any, pad: Any, mode: str = "constant", value: float | None = None) -> Read | None:
    sides = _dims(pad)
    return ("pad", (tensor,), {"pad": sides}) if mode == "constant" and not value and sides else None


def _average(tensor: Any, output_size: Any) -> Read | None:
    size = _pair(output_size)
    return None if size is None else ("adaptive_avg_pool2d", (tensor,), {"output_size": size})


def _interpolate(
    tensor: Any,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Read | None:
    simple = all(isinstance(one, int | float | None) for one in (size, scale_factor))
    if not simple or recompute_scale_factor or antialias or mode not in ("nearest", "bilinear"):
        return None
    settings = {"size": size, "scale_factor": scale_factor, "mode": mode, "align_corners": align_corners}
    return "interpolate", (tensor,), settings


def _attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: Any = 0.0,
    is_causal: Any = False,
    scale: Any = None,
    enable_gqa: bool = False,
) -> Read | None:
    if dropout_p != 0 or enable_gqa or not isinstance(is_causal, bool) or not isinstance(scale, float | None):
        return None
    masks = () if attn_mask is None else (attn_mask,)
    return "attention", (query, key, value, *masks), {"is_causal": is_causal, "scale": scale}


def _masked(tensor: Any, mask: Any, value: Any) -> Read | None:
    return ("masked_fill", (tensor, mask), {"value": float(value)}) if _number(value) else None


_SHARED: Final[Mapping[str, Reader]] = {
    "add": _binary("add", "add"),
    "sub": _binary("sub", "rsub"),
    "mul": _binary("mul", "mul"),
    "div": _binary("div", "rdiv"),
    "pow": _binary("pow", None),
    "matmul": lambda first, second: ("matmul", (first, second), {}),
    "relu": _unary("relu"),
    "sigmoid": _unary("sigmoid"),
    "tanh": _unary("tanh"),
    "erf": _unary("erf"),
    "sqrt": _unary("sqrt"),
    "rsqrt": _unary("rsqrt"),
    "softmax": _softmax_of_torch,
    "mean": _mean,
    "var": _var,
    "flatten": _flatten,
    "transpose": _transpose,
}
"""Names that torch offers both as a function and as a method."""

METHODS: Final[Mapping[str, Reader]] = {
    **_SHARED,
    "__add__": _SHARED["add"],
    "__mul__": _SHARED["mul"],
    "masked_fill": _masked,
    "t": lambda tensor: _transpose(tensor, -2, -1),
    "square": lambda tensor: ("pow", (tensor,), {"scalar": 2}),
}

FUNCTIONS: Final[Mapping[Callable[..., Any], Reader]] = {
    **{getattr(torch, name): reader for name, reader in _SHARED.items()},
    python.add: _SHARED["add"],
    python.sub: _SHARED["sub"],
    python.mul: _SHARED["mul"],
    python.truediv: _SHARED["div"],
    python.pow: _SHARED["pow"],
    python.matmul: _SHARED["matmul"],
    torch.masked_fill: _masked,
    torch.t: METHODS["t"],
    getattr: lambda tensor, name: _transpose(tensor, -2, -1) if name in ("T", "mT") else None,
    torch.square: METHODS["square"],
    torch.cat: _cat,
    torch.concat: _cat,
    functional.relu: _SHARED["relu"],
    functional.sigmoid: _SHARED["sigmoid"],
    functional.tanh: _SHARED["tanh"],
    functional.softmax: _softmax,
    functional.gelu: _gelu,
    functional.silu: _unary("silu"),
    functional.linear: _linear,
    functional.conv2d: _conv2d,
    functional.layer_norm: _layer_norm,
    functional.pad: _pad,
    functional.adaptive_avg_pool2d: _average,
    functional.interpolate: _interpolate,
    functional.scaled_dot_product_attention: _attention,
}

IN_PLACE: Final[Mapping[Callable[..., Any], Callable[..., Any]]] = {
    python.iadd: python.add,
    python.isub: python.sub,
    python.imul: python.mul,
    python.itruediv: python.truediv,
    python.ipow: python.pow,
    torch.relu_: torch.relu,
}
"""Functions that change their first argument, with the functions that return the result instead."""


def out_of_place(function: object) -> Callable[..., Any] | None:
    """Return the function equivalent to one that changes its first argument; None if there is none."""
    if not callable(function) or function in IN_PLACE:
        return IN_PLACE.get(function) if callable(function) else None
    name = getattr(function, "__name__", "")
    for owner in (functional, torch):  # `operator.and_` has this ending, too
        if name.endswith("_") and getattr(owner, name, None) is function:
            found: Callable[..., Any] | None = getattr(owner, name[:-1], None)
            return found
    return None


def _conv2d_layer(layer: nn.Conv2d, tensor: Any) -> Read | None:
    if layer.padding_mode != "zeros":
        return None
    return _conv2d(tensor, "weight", _named(layer, "bias"), layer.stride, layer.padding, layer.dilation, layer.groups)


def _upsample_layer(layer: nn.Upsample, tensor: Any) -> Read | None:
    return _interpolate(tensor, layer.size, layer.scale_factor, layer.mode, layer.align_corners)


def _named(layer: nn.Module, name: str) -> str | None:
    return name if getattr(layer, name, None) is not None else None


LAYERS: Final[Mapping[type[nn.Module], Callable[..., Read | None]]] = {
    nn.Conv2d: _conv2d_layer,
    nn.Linear: lambda layer, tensor: _linear(tensor, "weight", _named(layer, "bias")),
    nn.LayerNorm: lambda layer, tensor: _layer_norm(
        tensor, layer.normalized_shape, _named(layer, "weight"), _named(layer, "bias"), layer.eps
    ),
    nn.ReLU: lambda layer, tensor: ("relu", (tensor,), {}),
    nn.SiLU: lambda layer, tensor: ("silu", (tensor,), {}),
    nn.Sigmoid: lambda layer, tensor: ("sigmoid", (tensor,), {}),
    nn.Tanh: lambda layer, tensor: ("tanh", (tensor,), {}),
    nn.GELU: lambda layer, tensor: _gelu(tensor, layer.approximate),
    nn.Softmax: lambda layer, tensor: _softmax(tensor, layer.dim),
    nn.Flatten: lambda layer, tensor: _flatten(tensor, layer.start_dim, layer.end_dim),
    nn.AdaptiveAvgPool2d: lambda layer, tensor: _average(tensor, layer.output_size),
    nn.Upsample: _upsample_layer,
}
"""Layers whose forward is one operator; their parameters are named by strings."""

PURE_LAYERS: Final = (
    nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d, nn.AdaptiveAvgPool1d,
    nn.AdaptiveMaxPool2d, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose2d, nn.GroupNorm, nn.RMSNorm, nn.ReLU6,
    nn.Hardswish, nn.Hardsigmoid, nn.Hardtanh, nn.LeakyReLU, nn.ELU, nn.CELU, nn.SELU, nn.Mish, nn.PReLU, nn.Softplus,
    nn.ZeroPad2d, nn.ReflectionPad2d, nn.PixelShuffle, nn.Unflatten, nn.Embedding, nn.Softsign, nn.LogSigmoid,
)  # fmt: skip
"""Layers that are opaque to rules, and neither draw random numbers nor change a buffer."""

_RANDOM: Final = (
    "drop", "rand", "normal", "bernoulli", "multinomial", "poisson", "exponential", "rrelu", "gumbel", "fractional",
    "scaled_dot_product_attention", "multi_head_attention", "uniform", "seed",
)  # fmt: skip
"""Parts of the names of functions that may draw random numbers."""

_NORMS: Final = ("batch_norm", "instance_norm")


def effect_of(function: Callable[..., Any] | str) -> str:
    """Return the effect of a function, or of a tensor's method, in a node's form; an unknown one may draw."""
    name = function if isinstance(function, str) else getattr(function, "__name__", "")
    if any(part in name for part in _NORMS):
        return "buffers"
    if any(part in name for part in _RANDOM):
        return "random"
    if isinstance(function, str) or function in _HARMLESS:
        return ""
    package = (getattr(function, "__module__", "") or "torch").partition(".")[0]
    return "" if package in ("torch", "_operator") else "random"


def layer_effect(layer: nn.Module) -> str:
    """Return the effect of a layer that is not in `LAYERS`."""
    if isinstance(layer, PURE_LAYERS):
        return ""
    return "buffers" if isinstance(layer, _NormBase) else "random"


_HARMLESS: Final = frozenset({getattr, math.sqrt, math.floor, math.ceil})
