"""The operators of ATen in graphs of torch.export, read as the operators of the rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch._ops import OpOverload

from espalier_lab.rewriting.engine.reading import FUNCTIONS as OF_TORCH
from espalier_lab.rewriting.engine.reading import METHODS, Read, Reader

_ATEN: Final = torch.ops.aten


def _softmax(tensor: Any, dim: int, dtype: Any = None) -> Read | None:
    return None if dtype is not None else OF_TORCH[torch.softmax](tensor, dim)


def _layer_norm(tensor: Any, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5, _: Any = None) -> Any:
    return OF_TORCH[torch.nn.functional.layer_norm](tensor, shape, weight, bias, eps)


READERS: Final[Mapping[Callable[..., Any], Reader]] = {
    _ATEN.add.Tensor: OF_TORCH[torch.add],
    _ATEN.sub.Tensor: OF_TORCH[torch.sub],
    _ATEN.rsub.Scalar: lambda tensor, scalar: OF_TORCH[torch.sub](scalar, tensor),
    _ATEN.mul.Tensor: OF_TORCH[torch.mul],
    _ATEN.div.Tensor: OF_TORCH[torch.div],
    _ATEN.pow.Tensor_Scalar: OF_TORCH[torch.pow],
    _ATEN.matmul.default: OF_TORCH[torch.matmul],
    _ATEN.linear.default: OF_TORCH[torch.nn.functional.linear],
    _ATEN.conv2d.default: OF_TORCH[torch.nn.functional.conv2d],
    _ATEN.layer_norm.default: _layer_norm,
    _ATEN.relu.default: OF_TORCH[torch.relu],
    _ATEN.gelu.default: OF_TORCH[torch.nn.functional.gelu],
    _ATEN.silu.default: OF_TORCH[torch.nn.functional.silu],
    _ATEN.sigmoid.default: OF_TORCH[torch.sigmoid],
    _ATEN.tanh.default: OF_TORCH[torch.tanh],
    _ATEN.erf.default: OF_TORCH[torch.erf],
    _ATEN.sqrt.default: OF_TORCH[torch.sqrt],
    _ATEN.rsqrt.default: OF_TORCH[torch.rsqrt],
    _ATEN.softmax.int: _softmax,
    _ATEN.mean.dim: OF_TORCH[torch.mean],
    _ATEN.var.correction: OF_TORCH[torch.var],
    _ATEN.flatten.using_ints: OF_TORCH[torch.flatten],
    _ATEN.transpose.int: OF_TORCH[torch.transpose],
    _ATEN.t.default: METHODS["t"],
    _ATEN.cat.default: OF_TORCH[torch.cat],
    _ATEN.adaptive_avg_pool2d.default: OF_TORCH[torch.nn.functional.adaptive_avg_pool2d],
    _ATEN.masked_fill.Scalar: OF_TORCH[torch.masked_fill],
    _ATEN.scaled_dot_product_attention.default: OF_TORCH[torch.nn.functional.scaled_dot_product_attention],
}
"""Readers by the called overload."""


CASTS: Final = frozenset({_ATEN.to.device, _ATEN.to.dtype, _ATEN.to.dtype_layout, _ATEN.to.other})
"""Operators that return their input itself if it already has the requested type and device."""


def changes_its_input(target: object) -> bool:
    """Return whether a target is an operator of ATen that writes into its first argument."""
    if not isinstance(target, OpOverload):
        return False
    first = target._schema.arguments[0].alias_info if target._schema.arguments else None
    return first is not None and first.is_write


def without_change(target: OpOverload) -> Callable[..., Any]:
    """Return the operator with the same result that does not write into its input; raise `AttributeError` if none."""
    packet = getattr(torch.ops.aten, target._opname.removesuffix("_"))
    made: Callable[..., Any] = getattr(packet, target._overloadname)
    return made


def may_return_its_input(target: OpOverload) -> bool:
    """Return whether the output of an operator may share memory with its input."""
    aliases = any(one.alias_info is not None for one in target._schema.returns)
    return aliases or "drop" in target._opname  # a dropout that drops nothing returns its input
