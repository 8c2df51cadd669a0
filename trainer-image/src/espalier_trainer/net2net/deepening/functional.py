"""Layers that are no modules: calls of torch's functions with parameters that a module holds.

They cannot be repeated, because growth inserts modules after modules. Each is reported with the line of the call.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import nn

from espalier_trainer.net2net.blocks import base_class
from espalier_trainer.net2net.deepening.own import PRODUCTS
from espalier_trainer.net2net.refusals import Refusal, place_of
from espalier_trainer.net2net.trace.graph import Graph, Operation
from espalier_trainer.net2net.trace.operators import LAYER_CLASSES, snake_case


def called_functions(modules: Mapping[str, nn.Module], graph: Graph, layers: Iterable[Operation]) -> dict[str, Refusal]:
    """Return for each weight that a function is called with why it cannot be repeated; by its path, or its layer's.

    `layers` are the modules that count as layers though they call functions.
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
    """Return for each operation that depends on parameters and buffers only those parameters that have two axes."""
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
