"""From torch.fx's graph to ours: known calls become operators, changes in place become new values."""

from __future__ import annotations

import inspect
import operator as python
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn

from espalier_trainer.rewriting.emitting import parameters_of
from espalier_trainer.rewriting.errors import RewritesRefusedError
from espalier_trainer.rewriting.graph import LEAVES, OUTPUT, Attributes, Graph, Node, attributes
from espalier_trainer.rewriting.metas import has_grad, meta_of, value_of
from espalier_trainer.rewriting.operators import VIEWS
from espalier_trainer.rewriting.reading import FUNCTIONS, IN_PLACE, LAYERS, METHODS, PURE_LAYERS, Read, has_effect
from espalier_trainer.rewriting.templates import Slot, as_template

_MAY_SHARE = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.Identity, nn.Flatten, nn.Unflatten)
"""Layers that may return their input, or a view of it."""


class Translation:
    """One model's graph while it is read; the model is run on the way, on the inputs `given` by their names."""

    def __init__(self, model: nn.Module, given: Mapping[str, Any]) -> None:
        """Read the forward of `model`."""
        self._model = model
        self._given = given
        self._paths = parameters_of(model)
        self._buffers = {id(buffer) for buffer in model.buffers()}
        self._nodes: dict[str, Node] = {}
        self._index: dict[tuple[Any, ...], str] = {}
        self._constants: dict[str, Tensor] = {}
        self._results: dict[fx.Node, Any] = {}
        self._names: dict[fx.Node, str] = {}
        """The node of ours that has the value of one of torch.fx at this moment: a change in place moves on."""

    def graph(self, traced: fx.Graph) -> Graph:
        """Return the graph. Raises `RewritesRefusedError` where a change in place may be seen elsewhere."""
        for order, node in enumerate(traced.nodes):
            self._read(node, float(order))
        return _without_dead(self._nodes, self._constants)

    def _read(self, node: fx.Node, order: float) -> None:
        if node.op == "placeholder":
            if node.target in self._given:
                value = self._given[str(node.target)]
                self._results[node] = value
                self._add(node, Node("input", (("name", str(node.target)),), (), value_of(value), order))
            return
        if node.op == "get_attr":
            self._leaf(node, str(node.target), order)
            return
        if node.op == "output":
            template, inputs = self._template(node.args, {})
            self._nodes[OUTPUT] = Node(OUTPUT, (("arguments", template),), inputs, None, order)
            return
        args, kwargs = self._real(node.args), self._real(node.kwargs)
        changes = self._changes(node)
        result, known, effect = self._called(node, args, kwargs)
        self._results[node] = result
        if isinstance(known, fx.Node):  # an Identity
            self._names[node] = self._names[known]
            return
        operator, settings, inputs = known
        grad = self._has_grad(node, operator, inputs)
        try:
            meta = meta_of(result, grad=grad)
        except TypeError as error:
            raise RewritesRefusedError(f"{node.name}: {error}") from error
        self._add(node, Node(operator, settings, inputs, meta, order, effect))
        if changes is not None:
            self._change(changes, node)

    def _has_grad(self, node: fx.Node, operator: str, inputs: tuple[str, ...]) -> bool:
        if node.op == "call_method" and node.target == "detach":
            return False
        if operator == "module" and any(one.requires_grad for one in self._submodule(node).parameters()):
            return True
        return any(has_grad(self._nodes[one].meta) for one in inputs)

    def _called(
        self, node: fx.Node, args: Any, kwargs: Any
    ) -> tuple[Any, tuple[str, Attributes, tuple[str, ...]] | fx.Node, bool]:
        """Return the result of a call, its operator with settings and inputs, and whether it has an effect."""
        if node.op == "call_module":
            layer = self._submodule(node)
            result = layer(*args, **kwargs)
            if type(layer) is nn.Identity and isinstance(node.args[0], fx.Node):
                return result, node.args[0], False
            reader = LAYERS.get(type(layer))
            read = self._try(reader, node, (layer, *node.args), node.kwargs, result)
            known = self._known(read, str(node.target)) or self._opaque(node, "module", "path", str(node.target))
            return result, known, known[0] == "module" and not isinstance(layer, PURE_LAYERS)
        if node.op == "call_method":
            name = str(node.target)
            plain = name[:-1] if _in_place(name) else name
            if not hasattr(torch.Tensor, plain):
                raise RewritesRefusedError(f"{node.name}: the method {name} changes a tensor in place")
            result = getattr(args[0], plain)(*args[1:], **kwargs)
            read = self._try(METHODS.get(plain), node, node.args, node.kwargs, result)
            known = self._known(read) or self._opaque(node, "method", "target", plain)
            return result, known, known[0] == "method" and has_effect(plain)
        target = node.target
        if not callable(target) or target is python.setitem:
            raise RewritesRefusedError(f"{node.name}: the forward writes into a tensor in place")
        function: Callable[..., Any] = IN_PLACE.get(target, target)
        settings = {key: value for key, value in node.kwargs.items() if key != "inplace"}
        plain_kwargs = {key: value for key, value in kwargs.items() if key != "inplace"}
        result = function(*args, **plain_kwargs)
        read = self._try(FUNCTIONS.get(function), node, node.args, settings, result)
        known = self._known(read) or self._opaque(node, "call", "target", function, settings)
        return result, known, known[0] == "call" and has_effect(function)

    def _try(
        self, reader: Callable[..., Read | None] | None, node: fx.Node, args: Any, kwargs: Any, result: Any
    ) -> Read | None:
        """Return what a call is read as; None where it is nothing that the rules know."""
        if reader is None or not isinstance(result, Tensor):
            return None
        try:
            inspect.signature(reader).bind(*args, **kwargs)
        except TypeError:
            return None
        read = reader(*args, **kwargs)
        if read is None:
            return None
        if read[0] == "transpose" and node.target != "transpose" and result.dim() != _MATRIX:
            return None  # `T` of more dimensions turns all of them
        tensors = all(isinstance(one, str) or self._is_tensor(one) for one in read[1])
        simple = not any(isinstance(one, fx.Node) for value in read[2].values() for one in _items(value))
        return read if tensors and simple else None

    def _known(self, read: Read | None, layer: str = "") -> tuple[str, Attributes, tuple[str, ...]] | None:
        if read is None:
            return None
        operator, inputs, settings = read
        names = tuple(
            self._parameter(f"{layer}.{one}" if layer else one) if isinstance(one, str) else self._names[one]
            for one in inputs
        )
        return operator, attributes(settings), names

    def _opaque(
        self, node: fx.Node, operator: str, key: str, target: Hashable, kwargs: Mapping[str, Any] | None = None
    ) -> tuple[str, Attributes, tuple[str, ...]]:
        template, inputs = self._template(node.args, dict(node.kwargs if kwargs is None else kwargs))
        return operator, attributes({key: target, "arguments": template}), inputs

    def _template(self, args: Any, kwargs: Any) -> tuple[Hashable, tuple[str, ...]]:
        inputs: dict[str, int] = {}

        def slot(value: Any) -> Slot | None:
            if not isinstance(value, fx.Node):
                return None
            return Slot(inputs.setdefault(self._names[value], len(inputs)))

        return as_template(args, kwargs, slot), tuple(inputs)

    def _changes(self, node: fx.Node) -> fx.Node | None:
        """Return the node whose tensor a call changes in place."""
        if node.op == "call_module":
            changes = bool(getattr(self._submodule(node), "inplace", False))
        elif node.op == "call_method":
            changes = _in_place(str(node.target))
        else:
            changes = node.target in IN_PLACE or node.kwargs.get("inplace") is True
            changes = changes or (node.target in _INPLACE_SECOND and len(node.args) > 1 and node.args[1] is True)
        first = node.args[0] if node.args else None
        return first if changes and isinstance(first, fx.Node) and self._is_tensor(first) else None

    def _change(self, changed: fx.Node, by: fx.Node) -> None:
        """Let those that read `changed` from here on read what `by` returned."""
        name = self._names[changed]
        readers = [other for other in self._nodes.values() if name in other.inputs]
        if self._may_share(self._nodes[name]) or any(
            self._may_share(other) for other in readers if other is not self._nodes[self._names[by]]
        ):
            raise RewritesRefusedError(
                f"{by.name} changes a tensor in place that others may see ({name}); compute it anew instead"
            )
        for each, its in self._names.items():
            if its == name:
                self._names[each] = self._names[by]

    def _may_share(self, node: Node) -> bool:
        """Return whether the memory of a node's output may belong to another."""
        if node.operator == "module":
            return isinstance(self._model.get_submodule(node.get("path")), _MAY_SHARE)
        return node.operator in VIEWS or node.operator in LEAVES or node.operator in ("call", "method")

    def _is_tensor(self, value: Any) -> bool:
        return isinstance(value, fx.Node) and isinstance(self._results.get(value), Tensor)

    def _submodule(self, node: fx.Node) -> nn.Module:
        return self._model.get_submodule(str(node.target))

    def _leaf(self, node: fx.Node, path: str, order: float) -> None:
        owner, _, name = path.rpartition(".")
        tensor = getattr(self._model.get_submodule(owner), name)
        self._results[node] = tensor
        if id(tensor) in self._paths:
            self._names[node] = self._parameter(path)
            return
        if not isinstance(tensor, Tensor):
            raise RewritesRefusedError(f"{path!r} is no tensor")
        if id(tensor) not in self._buffers:
            self._constants[path] = tensor
        self._add(node, Node("constant", (("path", path),), (), value_of(tensor), order))

    def _parameter(self, path: str) -> str:
        owner, _, name = path.rpartition(".")
        parameter = getattr(self._model.get_submodule(owner), name)
        first = self._paths[id(parameter)]  # a tied parameter has several paths
        node = f"@{first}"  # no other node is called so
        if node not in self._nodes:
            self._nodes[node] = Node("parameter", (("path", first),), (), value_of(parameter), -1.0)
        return node

    def _real(self, arguments: Any) -> Any:
        return fx.map_arg(arguments, lambda one: self._results[one])

    def _add(self, node: fx.Node, made: Node) -> None:
        self._nodes[node.name] = made
        self._names[node] = node.name


_MATRIX = 2

_INPLACE_SECOND = frozenset({nn.functional.relu, nn.functional.silu})
"""Functions whose second argument is `inplace`."""


def _in_place(method: str) -> bool:
    return method.endswith("_") and not method.endswith("__")


def _items(value: Any) -> list[Any]:
    return list(value) if isinstance(value, tuple | list) else [value]


def _without_dead(nodes: dict[str, Node], constants: Mapping[str, Tensor]) -> Graph:
    """Return the graph of the nodes that the result, or an effect, needs."""
    needed: set[str] = set()
    waiting = [name for name, node in nodes.items() if node.effect or node.operator in (OUTPUT, "input")]
    while waiting:
        name = waiting.pop()
        if name not in needed:
            needed.add(name)
            waiting.extend(nodes[name].inputs)
    kept = {name: node for name, node in nodes.items() if name in needed}
    users: dict[str, tuple[str, ...]] = dict.fromkeys(kept, ())
    index: dict[tuple[Any, ...], str] = {}
    for name, node in kept.items():
        for one in dict.fromkeys(node.inputs):
            users[one] = (*users[one], name)
        if not node.effect:
            index.setdefault(node.content, name)
    return Graph(kept, users, index, constants)
