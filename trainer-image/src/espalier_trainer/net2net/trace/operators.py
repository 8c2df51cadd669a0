"""Canonical names and attributes of operations, the same for a module and for its functional counterpart."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.parametrize import is_parametrized, type_before_parametrizations
from torch.utils._pytree import tree_map_only

from espalier_core.growth.architecture import AttributeValue
from espalier_trainer.net2net.blocks import base_class

LAYERS = {"Linear": 0, "Conv1d": 1, "Conv2d": 2, "Conv3d": 3}
"""Operators that growth repeats, with their number of spatial dimensions."""

LAYER_CLASSES = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)

BATCH_NORMS = frozenset({"BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "SyncBatchNorm"})

NORM_FUNCTIONS = frozenset({"BatchNorm", "InstanceNorm"})
"""Norms that a module calls as a function, whatever its dimensions (timm's `BatchNormAct2d`)."""

IDEMPOTENT = frozenset({"ReLU", "ReLU6", "Hardtanh"})
"""Activations with f(f(x)) = f(x)."""

ZERO_AT_ZERO = frozenset(
    {"GELU", "SiLU", "Hardswish", "Tanh", "LeakyReLU", "PReLU", "RReLU", "ELU", "CELU", "SELU", "Mish", "Softsign"}
)
"""Other activations with f(0) = 0 and a slope there, which a zero branch needs to learn."""

OFFSET_AT_ZERO = frozenset({"Sigmoid", "Hardsigmoid", "Softplus", "LogSigmoid"})
"""Activations with f(0) ≠ 0: only their input can be hosted."""

ACTIVATIONS = IDEMPOTENT | ZERO_AT_ZERO | OFFSET_AT_ZERO

_MODULE_OPERATORS = {"NonDynamicallyQuantizableLinear": "Linear"}

_FUNCTION_OPERATORS = {
    "__add__": "Add", "__radd__": "Add", "__iadd__": "Add",
    "__sub__": "Sub", "__rsub__": "Sub", "__isub__": "Sub", "rsub": "Sub",
    "__mul__": "Mul", "__rmul__": "Mul", "__imul__": "Mul", "multiply": "Mul",
    "__truediv__": "Div", "__rtruediv__": "Div", "__itruediv__": "Div", "divide": "Div", "true_divide": "Div",
    "__matmul__": "MatMul", "__rmatmul__": "MatMul", "matmul": "MatMul", "bmm": "MatMul", "mm": "MatMul",
    "__getitem__": "GetItem", "__setitem__": "SetItem",
    "cat": "Concat", "concat": "Concat", "concatenate": "Concat",
    "relu": "ReLU", "relu6": "ReLU6", "gelu": "GELU", "silu": "SiLU", "elu": "ELU", "celu": "CELU",
    "selu": "SELU", "leaky_relu": "LeakyReLU", "logsigmoid": "LogSigmoid", "prelu": "PReLU", "rrelu": "RReLU",
    "layer_norm": "LayerNorm", "group_norm": "GroupNorm", "rms_norm": "RMSNorm",
}  # fmt: skip
"""Names that differ from the function's name in CamelCase."""

_FUNCTION_ATTRIBUTES: Mapping[str, Mapping[str, AttributeValue]] = {
    "ReLU": {}, "ReLU6": {}, "SiLU": {}, "Mish": {}, "Hardswish": {}, "Tanh": {}, "Sigmoid": {}, "SELU": {},
    "Hardsigmoid": {}, "Softsign": {}, "LogSigmoid": {}, "PReLU": {}, "Add": {}, "Mul": {}, "Sub": {}, "Div": {},
    "MatMul": {},
    "BatchNorm": {}, "InstanceNorm": {},  # whether they train is the mode's, not a setting
    "Reshape": {}, "View": {}, "Expand": {}, "ViewAs": {}, "ExpandAs": {},  # their sizes hold the example's batch
    "GELU": {"approximate": "none"},
    "LeakyReLU": {"negative_slope": 0.01},
    "ELU": {"alpha": 1.0},
    "CELU": {"alpha": 1.0},
    "Softplus": {"beta": 1.0, "threshold": 20.0},
    "Hardtanh": {"min_val": -1.0, "max_val": 1.0},
    "Dropout": {"p": 0.5},
    "Flatten": {"start_dim": 0, "end_dim": -1},
    "Concat": {"dim": 0},
    "Softmax": {"dim": None},
    "AdaptiveAvgPool2d": {"output_size": None},
    "AdaptiveMaxPool2d": {"output_size": None},
    "MaxPool2d": {"kernel_size": None, "stride": None, "padding": 0},
    "AvgPool2d": {"kernel_size": None, "stride": None, "padding": 0},
    "Permute": {"dims": None},
    "Transpose": {"dim0": None, "dim1": None},
}  # fmt: skip
"""Attributes of functional operations after their tensor inputs, in argument order, with torch's defaults.

If there is a module for the operator, these are also its attributes. Operators that are not listed keep their simple
arguments as `arg1`, `arg2`, ...
"""

_NOT_ATTRIBUTES = frozenset({"inplace", "return_indices", "training", "output_padding"})
"""Constants of modules that are not settings, or do not change the result."""


_ADDRESS = re.compile(r" at 0x[0-9a-f]+")

PASSING_ON = frozenset({"Identity", "Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout"})
"""Leaf modules that may return their input tensor itself."""

NO_CHANGE = frozenset({"contiguous", "to", "type", "type_as", "float", "double", "half", "bfloat16"})
"""Tensor methods that return their tensor itself where nothing has to change."""

SEVERING = frozenset(
    {torch.Tensor.detach, torch.Tensor.detach_, torch.detach, torch.detach_, cast(Any, torch.Tensor.data).__get__}
)
"""Functions whose result passes no gradient on."""

SHAPE_KEEPING = frozenset(
    {
        *(functional.batch_norm, functional.layer_norm, functional.group_norm),
        *(functional.relu6, functional.hardtanh, functional.hardswish, functional.silu, functional.gelu),
    }
)
"""Functions that keep the shape of their input. Their meta versions would take most of a trace's time."""


def is_leaf(module: nn.Module) -> bool:
    """Return whether a module is one operation of the description: a layer of torch, not a container."""
    if isinstance(module, nn.Sequential | nn.ModuleList | nn.ModuleDict):
        return False
    if isinstance(module, nn.Transformer | nn.TransformerEncoder | nn.TransformerDecoder):
        return False  # containers of layers, which are operations: in eval mode torch may fuse each of them
    if is_parametrized(module):
        return True
    return base_class(module).__module__.startswith("torch.nn.")


def module_operator(module: nn.Module) -> str:
    """Return the canonical operator of a leaf module: its class name without wrappers."""
    kind = type_before_parametrizations(module) if is_parametrized(module) else base_class(module)
    return _MODULE_OPERATORS.get(kind.__name__, kind.__name__)


def module_attributes(module: nn.Module) -> dict[str, AttributeValue]:
    """Return the settings of a leaf module that torch itself lists as constants, and whether it has a bias."""
    names = [name for name in getattr(module, "__constants__", []) if name not in _NOT_ATTRIBUTES]
    if isinstance(module, nn.MultiheadAttention):
        names += ["embed_dim", "num_heads"]
    elif isinstance(module, nn.RNNBase):
        names = [*names, "mode"]
    elif isinstance(module, nn.ReLU6):
        names = []  # its bounds are its name
    elif not names and isinstance(module, nn.GELU):
        names = ["approximate"]
    found: dict[str, AttributeValue] = {}
    for name in sorted(set(names)):
        if hasattr(module, name):
            found[name] = _value(getattr(module, name))
    if isinstance(module, nn.Linear | nn.modules.conv._ConvNd):
        found["bias"] = module.bias is not None
    return found


def function_operator(function: Any) -> str:
    """Return the canonical operator of a torch function or tensor method (`add_` and `+=` are `Add`).

    Operations of other libraries are named after these too: `mylib::relu` need not be torch's, and is `MylibRelu`.
    """
    name = str(getattr(function, "__name__", type(function).__name__)).partition(".")[0]  # without the overload
    module = str(getattr(function, "__module__", None) or "torch")  # methods have none
    is_foreign = not module.startswith("torch") or (module.startswith("torch._ops.") and module != "torch._ops.aten")
    plain = f"{module.rpartition('.')[2]}_{name}" if is_foreign else name.strip("_")
    known = None if is_foreign else _FUNCTION_OPERATORS.get(name, _FUNCTION_OPERATORS.get(plain))
    return known or "".join(part[:1].upper() + part[1:] for part in plain.split("_")) or "Function"


def function_attributes(operator: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, AttributeValue]:
    """Return the simple (non-tensor) arguments of a functional operation under their canonical names."""
    simple = [value for value in args if not _holds_tensor(value)]
    known = _FUNCTION_ATTRIBUTES.get(operator)
    if known is None:
        named = {f"arg{index}": value for index, value in enumerate(simple, start=1)}
        named |= {name: value for name, value in kwargs.items() if not _holds_tensor(value)}
        return {name: _value(value) for name, value in named.items() if name not in _NOT_ATTRIBUTES}
    if operator == "Permute" and len(simple) > 1:
        simple = [tuple(simple)]
    given = dict(zip(known, simple, strict=False)) | {k: v for k, v in kwargs.items() if k in known}
    return {name: _value(given.get(name, default)) for name, default in known.items()}


def written_arguments(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """Return the arguments of a function as text, without tensors and addresses of objects."""
    return _ADDRESS.sub("", repr(tree_map_only(torch.Tensor, lambda _: ..., (args, dict(kwargs)))))


def shape_only(values: torch.Tensor, *args: object, inplace: bool = False, **_kwargs: object) -> torch.Tensor:
    """Return the result of a function of `SHAPE_KEEPING` on a meta tensor."""
    # Only batch norm has another flag than `inplace`, and it comes after its four tensors.
    if inplace or any(flag is True for flag in args[:3]):
        return values
    return torch.empty_like(values)


def snake_case(operator: str) -> str:
    """Return `adaptive_avg_pool2d` for `AdaptiveAvgPool2d`, `relu` for `ReLU`."""
    spelled = operator.replace("ReLU", "Relu").replace("SiLU", "Silu")
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", spelled).lower()


def _value(value: Any) -> AttributeValue:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # a mask's -inf: JSON has no number for it
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple | list | torch.Size) and all(type(item) is int for item in value):
        return tuple(value)
    return _ADDRESS.sub("", str(value))  # addresses, such as a generator's, differ between processes


def _holds_tensor(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(_holds_tensor(item) for item in value)
    return isinstance(value, torch.Tensor)
