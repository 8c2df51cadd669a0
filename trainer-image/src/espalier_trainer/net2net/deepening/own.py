"""Layers and activations that are classes of the user's or of a library's, and call torch's functions.

A trace sees what such a module computes, operation by operation. For growth it is one layer (a matrix multiplication
or a convolution by the module's own weight: GPT-2's `Conv1D`, a `Conv2d` that pads as TensorFlow does), or one
activation (a module without parameters that computes each entry from the same entry: GPT-2's own GELU).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from torch import nn

from espalier_core.growth.architecture import AttributeValue
from espalier_trainer.net2net.blocks import STACK
from espalier_trainer.net2net.trace.graph import Graph, Operation
from espalier_trainer.net2net.trace.operators import ACTIVATIONS, LAYERS, is_leaf

PRODUCTS: Mapping[str, str] = {
    **{name: name for name in LAYERS},
    **dict.fromkeys(("Addmm", "MatMul", "Baddbmm", "Einsum"), "Linear"),
}
"""Functions of a weight, and what layer a module that calls one is."""

_ELEMENTWISE = ACTIVATIONS | {
    "Add", "Sub", "Mul", "Div", "Neg", "Pow", "Square", "Abs", "Exp", "Erf", "Sqrt", "Clamp", "Clip", "ClampMin",
    "Maximum", "Minimum", "Where", "To", "Float", "Contiguous", "Identity",
}  # fmt: skip
_CURVED = ACTIVATIONS | {"Pow", "Square", "Abs", "Exp", "Erf", "Clamp", "Clip", "ClampMin", "Maximum", "Minimum"}

_STAND_INS: Mapping[str, Mapping[str, AttributeValue]] = {
    "SiLU": {},
    "GELU": {"approximate": "none"},
}
"""Activations of torch that are inserted where a model has its own, added to the identity: exact whatever it is."""


def own_layers(modules: Mapping[str, nn.Module], graph: Graph) -> dict[str, Operation]:
    """Return the layers by the operations whose output they return; each carries the path of its module."""
    found: dict[str, Operation] = {}
    for path, module, inside in _called_once(modules, graph):
        weight = module._parameters.get("weight")
        result = graph.operations[graph.results[path]]
        if weight is None or weight.dim() < 2 or result.shape is None:
            continue
        operators = {PRODUCTS[one.operator] for one in inside if one.operator in PRODUCTS}
        if len(operators) == 1 and (operator := operators.pop()):
            width = result.shape[len(result.shape) - LAYERS[operator] - 1]
            if width in weight.shape[:2] and (not LAYERS[operator] or hasattr(module, "kernel_size")):
                found[result.name] = replace(result, operator=operator, inputs=_given(graph, path), module=path)
    return found


def own_activations(modules: Mapping[str, nn.Module], graph: Graph) -> dict[str, Operation]:
    """Return the activations by the operations whose output they return, each with the operator that stands in."""
    found: dict[str, Operation] = {}
    for path, module, inside in _called_once(modules, graph):
        if any(True for _ in module.parameters(recurse=False)) or len(inside) < 2:
            continue
        given, result = _given(graph, path), graph.operations[graph.results[path]]
        operators = {one.operator for one in inside}
        alike = len(given) == 1 and graph.operations[given[0]].shape == result.shape
        if alike and operators <= _ELEMENTWISE and operators & _CURVED:
            operator = "SiLU" if "Sigmoid" in operators else "GELU"
            found[result.name] = replace(
                result, operator=operator, attributes=_STAND_INS[operator], inputs=given, module=path
            )
    return found


def _called_once(
    modules: Mapping[str, nn.Module], graph: Graph
) -> Iterator[tuple[str, nn.Module, tuple[Operation, ...]]]:
    """Yield the modules that are no single operations, were called once, and what each computed to return a tensor."""
    for path, name in graph.results.items():
        module = modules.get(path)
        if not path or module is None or graph.calls.get(path) != 1 or is_leaf(module) or name not in graph.operations:
            continue
        if any(name != STACK for name, _ in module.named_children()):
            continue
        inside = tuple(one for one in graph.operations.values() if one.scope == path and one.module is None)
        if name in {one.name for one in inside}:
            yield path, module, inside


def _given(graph: Graph, path: str) -> tuple[str, ...]:
    """Return what the only call of a module read from outside it, weights left out."""
    spans = graph.spans.get(path, ())
    return tuple(name for name in spans[0].inputs if name) if spans else ()


def way(graph: Graph, operation: Operation) -> str | None:
    """Return the input whose values an operation shifts or scales by others of less shape; None where there is none.

    A norm's weight and bias, a frozen batch norm's factors, a gate for each channel, stochastic depth's for each
    example.
    """
    if operation.operator not in ("Add", "Sub", "Mul", "Div") or operation.shape is None:
        return None
    full = [name for name in operation.inputs if graph.operations[name].shape == operation.shape]
    less = [name for name in operation.inputs if name not in full]
    if len(full) != 1 or (operation.operator in ("Add", "Sub") and not all(_constant(graph, name) for name in less)):
        return None
    return full[0]


def _constant(graph: Graph, name: str) -> bool:
    """Return whether an operation depends on parameters and buffers only."""
    operation = graph.operations[name]
    return operation.operator in ("Parameter", "Buffer") or (
        bool(operation.inputs) and all(_constant(graph, given) for given in operation.inputs)
    )
