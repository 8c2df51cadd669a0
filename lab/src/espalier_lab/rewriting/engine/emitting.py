"""Conversion of a graph back to a module: the same parameters, buffers and layers with state, with a new forward."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, fx, nn

from espalier_lab.rewriting.engine.graph import OUTPUT, OpGraph, OpNode
from espalier_lab.rewriting.engine.operators import OPERATORS, spelled
from espalier_lab.rewriting.engine.templates import filled
from espalier_trainer.training.execution import RewritesRefusedError


def emitted(graph: OpGraph, module: nn.Module) -> fx.GraphModule:
    """Return a module that computes `graph` with the parameters, buffers and stateful layers of `module`, not copies.

    It takes the same inputs by the same names. If the graph holds only in train mode, a call in eval mode raises
    `RewritesRefusedError`.
    """
    root: dict[str, Any] = {}
    made: dict[str, fx.Node] = {}
    code = fx.Graph()
    for name in graph.ordered():
        node = graph.nodes[name]
        inputs = [made[one] for one in node.inputs]
        if node.operator in ("parameter", "constant"):
            path = str(node.get("path"))
            root[path] = graph.constants.get(path) if node.operator == "constant" else None
            if root[path] is None:
                root[path] = _tensor(module, path)
        elif node.operator == "module":
            root[str(node.get("path"))] = module.get_submodule(str(node.get("path")))
        made[name] = _written(code, name, node, inputs)
    execution = fx.GraphModule(root, code, class_name="Execution")
    execution.training = module.training
    for path, inner in execution.named_modules():
        if path not in root:
            inner.training = module.training
    if not graph.both_modes:
        execution.register_forward_pre_hook(_train_alone)
    return execution


def _written(code: fx.Graph, name: str, node: OpNode, inputs: Sequence[fx.Node]) -> fx.Node:
    if node.operator == "input":
        return code.placeholder(str(node.get("name")))
    if node.operator in ("parameter", "constant"):
        return code.create_node("get_attr", str(node.get("path")), name=_identifier(name))
    if node.operator == OUTPUT:
        arguments, _ = filled(node.get("arguments"), inputs)
        result: fx.Node = code.output(arguments[0])
        return result
    if node.operator in OPERATORS:
        function, operands, settings = spelled(node.operator, inputs, dict(node.attributes))
        return code.create_node("call_function", function, operands, settings, _identifier(name))
    arguments, settings = filled(node.get("arguments"), inputs)
    kind = {"module": "call_module", "method": "call_method", "call": "call_function"}[node.operator]
    target: str | Callable[..., Any] = node.get("path" if kind == "call_module" else "target")
    return code.create_node(kind, target, arguments, settings, _identifier(name))


def _identifier(name: str) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in name)


def _tensor(module: nn.Module, path: str) -> Tensor:
    owner, _, attribute = path.rpartition(".")
    tensor: Tensor = getattr(module.get_submodule(owner), attribute)
    return tensor


def _train_alone(execution: nn.Module, _inputs: object) -> None:
    if not execution.training:
        raise RewritesRefusedError(
            "this execution computes as the model does in train mode; in eval mode, call the model itself"
        )


def parameters_of(module: nn.Module) -> Mapping[int, str]:
    """Return the first name of each parameter by its identity."""
    return {id(parameter): name for name, parameter in module.named_parameters()}
