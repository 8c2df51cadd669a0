"""Conditions for a layer to be repeated, and the message for each condition that fails.

A layer may be a module of torch, or a module of the user or of a library that calls torch's functions. A trace records
the operations of such a module. For growth it is one layer (a matrix multiplication or a
convolution by the module's own weight: GPT-2's `Conv1D`, a `Conv2d` that pads as TensorFlow does), or one activation
(a module without parameters that computes each entry from the same entry: GPT-2's own GELU).

Calls of torch's functions with parameters that another module holds cannot be repeated, because growth inserts
modules after modules. Each is reported with the line of the call.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from torch import nn

from espalier_core.growth.architecture import AttributeValue
from espalier_trainer.net2net.blocks import STACK, base_class
from espalier_trainer.net2net.refusals import Refusal, RefusalReason, place_of, why_parametrized, why_transposed
from espalier_trainer.net2net.trace.graph import Graph, Operation
from espalier_trainer.net2net.trace.operators import (
    ACTIVATIONS,
    BATCH_NORMS,
    LAYER_CLASSES,
    LAYERS,
    NORM_FUNCTIONS,
    is_leaf,
    snake_case,
)

TRANSPARENT = BATCH_NORMS | NORM_FUNCTIONS | {
    "LayerNorm", "GroupNorm", "RMSNorm", "InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d", "LocalResponseNorm",
    "Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout", "FeatureAlphaDropout", "Identity",
}  # fmt: skip
"""Operators that may lie between a layer and its activation, besides additions."""


class InsertionRefusedError(Exception):
    """A place fails a condition; the text completes `... cannot be deepened: `."""

    def __init__(self, reason: str, at: str = "") -> None:
        """`at` is file and line of the call that decides, `model.py:12`; empty where the forward as a whole decides."""
        super().__init__(reason)
        self.at = at

    @classmethod
    def of(cls, reason: RefusalReason) -> InsertionRefusedError:
        """Return the refusal for this reason."""
        return cls(f"{reason.text}; {reason.remedy}", reason.at)


def check_layer(layer: Operation, modules: Mapping[str, nn.Module], graph: Graph, tied: Mapping[str, str]) -> None:
    """Raise `InsertionRefusedError` unless the layer can be repeated: one call, unshared weight, batch of channels."""
    path = str(layer.module)
    calls = graph.calls[path]
    if calls > 1:
        if path in graph.reached(f"{path}:1"):
            raise InsertionRefusedError(
                f"{path!r} is called {calls} times, on its own result, and growth would change each "
                "call; grow another layer, or give each call a separate module, with weights of its own"
            )
        raise InsertionRefusedError(
            f"{path!r} is called {calls} times and growth would change each call; concatenate the inputs of the "
            "calls and call it once (`torch.cat`, then `chunk`), or give each call a separate module"
        )
    if why := why_parametrized(path, modules[path]):
        raise InsertionRefusedError(why)
    if path in tied:
        raise InsertionRefusedError(f"{path!r} shares a parameter with {tied[path]!r}; untie them before growth")
    dimensions = LAYERS[layer.operator]
    shape = layer.shape or ()
    if len(shape) != (dimensions + 2 if dimensions else max(2, len(shape))):
        raise InsertionRefusedError(f"{path!r} returns shape {shape}; expected a batch dimension before the channels")


def channels_of(layer: Operation, shape: tuple[int, ...]) -> int:
    """Return the number of channels (features) of a tensor of this shape, on the axis of the layer's channels."""
    return shape[len(shape) - LAYERS[layer.operator] - 1]


def tied_weights(model: nn.Module) -> dict[str, str]:
    """Return, for each module that shares a parameter with another module, the path of that module."""
    owners: dict[int, list[str]] = {}
    for path, module in model.named_modules():
        for parameter in module._parameters.values():
            if parameter is not None:
                owners.setdefault(id(parameter), []).append(path)
    return {
        path: next(other for other in paths if other != path)
        for paths in owners.values()
        if len(set(paths)) > 1
        for path in paths
    }


def within(path: str, module: str) -> bool:
    """Return whether `path` is the module's or inside it."""
    return not module or path == module or path.startswith(f"{module}.")


def reasons_of_layers(modules: Mapping[str, nn.Module], graph: Graph, marks: tuple[str, ...]) -> dict[str, str]:
    """Return, for every layer, the reason why it is not a growth point unless the search finds it to be one."""
    reasons = why_transposed(modules)
    reasons |= {
        path: f"{path!r} is not called by itself in the model's forward"
        for path, module in modules.items()
        if isinstance(module, LAYER_CLASSES) and path not in graph.calls
    }
    for operation in graph.operations.values():
        if operation.operator not in LAYERS or operation.module is None:
            continue
        mark = next((mark for mark in marks if within(operation.module, mark)), None)
        if mark is not None:
            reasons[operation.module] = f"the model marks its places; name the mark {mark!r} instead"
        elif marks:
            reasons[operation.module] = (
                "the model marks its places with DeepenBlock, and this layer is in none; mark it"
            )
        else:
            reasons[operation.module] = _why_no_activation(operation, graph)
    return reasons


def why_no_mark(mark: str, graph: Graph) -> str:
    """Return the reason why a marked block is not a growth point."""
    if not graph.calls.get(mark):
        return f"the marked block {mark!r} is not called as a whole in the model's forward"
    return (
        f"the marked block {mark!r} holds no activation after a layer; expected one of {', '.join(LAYERS)}, "
        f"normalisation if any, then one of {', '.join(sorted(ACTIVATIONS))}"
    )


def _why_no_activation(layer: Operation, graph: Graph) -> str:
    """Describe the operation that follows the layer in place of an activation."""
    waiting = [layer.name]
    for name in waiting:  # grows while it is read
        for reader in graph.consumers[name]:
            operation = graph.operations[reader]
            if operation.operator in TRANSPARENT or operation.operator == "Add":
                if reader not in waiting:
                    waiting.append(reader)
            elif operation.operator not in ACTIVATIONS:
                return (
                    f"expected an activation after {layer.name!r} (through normalisation, dropout or addition), "
                    f"found {operation.operator} {operation.name!r}; put an activation there"
                )
    return f"no activation follows {layer.name!r}, so a new layer would merge with it; put an activation there"


PRODUCTS: Mapping[str, str] = {
    **{name: name for name in LAYERS},
    **dict.fromkeys(("Addmm", "MatMul", "Baddbmm", "Einsum"), "Linear"),
}
"""Functions of a weight, and the layer that a module calling one counts as."""

_ELEMENTWISE = ACTIVATIONS | {
    "Add", "Sub", "Mul", "Div", "Neg", "Pow", "Square", "Abs", "Exp", "Erf", "Sqrt", "Clamp", "Clip", "ClampMin",
    "Maximum", "Minimum", "Where", "To", "Float", "Contiguous", "Identity",
}  # fmt: skip
_CURVED = ACTIVATIONS | {"Pow", "Square", "Abs", "Exp", "Erf", "Clamp", "Clip", "ClampMin", "Maximum", "Minimum"}

_STAND_INS: Mapping[str, Mapping[str, AttributeValue]] = {
    "SiLU": {},
    "GELU": {"approximate": "none"},
}
"""Activations of torch inserted, added to the identity, where a model has its own: exact for any activation."""


def own_layers(modules: Mapping[str, nn.Module], graph: Graph) -> dict[str, Operation]:
    """Return the user's own layers by the operations whose output they return; each carries the path of its module."""
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
    """Return the user's own activations by the operations whose output they return, each with its stand-in operator."""
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
    """Yield the modules called once that are not single operations, with the operations that computed their tensor."""
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
    """Return the values from outside that the only call of a module read, without weights."""
    spans = graph.spans.get(path, ())
    return tuple(name for name in spans[0].inputs if name) if spans else ()


def way(graph: Graph, operation: Operation) -> str | None:
    """Return the input that an operation shifts or scales by values of a smaller shape; None where there is none.

    Examples: a norm's weight and bias, a frozen batch norm's factors, a gate per channel, stochastic depth's factor per
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
    """Return whether an operation depends only on parameters and buffers."""
    operation = graph.operations[name]
    return operation.operator in ("Parameter", "Buffer") or (
        bool(operation.inputs) and all(_constant(graph, given) for given in operation.inputs)
    )


def called_functions(modules: Mapping[str, nn.Module], graph: Graph, layers: Iterable[Operation]) -> dict[str, Refusal]:
    """Return refusals of the weights that functions are called with, by the weight's path or its layer's.

    `layers` are the modules that count as layers although they call functions.
    """
    constants = _constants(graph)
    known = {str(layer.module) for layer in layers}
    found: dict[str, Refusal] = {}
    for operation in graph.operations.values():
        if operation.module is not None or operation.operator not in PRODUCTS or operation.scope in known:
            continue
        weights = [path for name in operation.inputs for path in constants.get(name, ())]
        if not weights:
            continue
        file, line = place_of(operation.written_at) or ("", 0)
        path, owner = weights[0], weights[0].rpartition(".")[0]
        function = snake_case(operation.operator)
        holder = modules.get(owner)
        if isinstance(holder, LAYER_CLASSES):
            path = owner
            reason = f"the forward calls the function {function} with the weight of {owner!r}, not the module itself"
            remedy = f"call the module, `y = self.{owner.rpartition('.')[2]}(x)`, and give it the settings of the call"
        else:
            name = "the model" if holder is None or not owner else f"{owner!r} ({base_class(holder).__name__})"
            layer = operation.operator if operation.operator in PRODUCTS.values() else PRODUCTS[operation.operator]
            reason = (
                f"the function {function} is called with {path!r}, a parameter of {name}, and growth repeats modules"
            )
            remedy = f"hold the parameter in a torch.nn.{layer}, and call that in the forward"
        found.setdefault(path, Refusal(path, reason, file, line, remedy))
    return found


def _constants(graph: Graph) -> dict[str, tuple[str, ...]]:
    """Return, for each operation on parameters and buffers only, those parameters that have two or more axes."""
    found: dict[str, tuple[str, ...]] = {}
    for name, operation in graph.operations.items():
        if operation.operator == "Parameter":
            shape = operation.attributes.get("shape")
            found[name] = (name,) if isinstance(shape, tuple) and len(shape) > 1 else ()
        elif operation.operator == "Buffer":
            found[name] = ()
        elif (
            operation.operator != "Input" and operation.module is None and all(one in found for one in operation.inputs)
        ):
            found[name] = tuple(path for given in operation.inputs for path in found[given])
    return found
