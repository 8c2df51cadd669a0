"""Translation of torch.fx's graph to ours: known calls become operators, changes in place become new values."""

from __future__ import annotations

import inspect
import operator as python
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._ops import OpOverload

from espalier_lab.rewriting.engine import aten
from espalier_lab.rewriting.engine.emitting import parameters_of
from espalier_lab.rewriting.engine.graph import LEAVES, OUTPUT, Attributes, OpGraph, OpNode, assembled, attributes
from espalier_lab.rewriting.engine.metas import has_grad, meta_of, value_of
from espalier_lab.rewriting.engine.operators import VIEWS
from espalier_lab.rewriting.engine.reading import (
    FUNCTIONS,
    LAYERS,
    METHODS,
    Read,
    effect_of,
    layer_effect,
    out_of_place,
)
from espalier_lab.rewriting.engine.templates import Slot, as_template
from espalier_trainer.training.execution import RewritesRefusedError

_MAY_SHARE = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.Identity, nn.Flatten, nn.Unflatten)
"""Layers that may return their input, or a view of it."""


class Translation:
    """The graph of one model during translation; the model is run along the way on the inputs `given` by name."""

    def __init__(self, model: nn.Module, given: Mapping[str, Any]) -> None:
        """Read the forward of `model`."""
        self._model = model
        self._given = given
        self._paths = parameters_of(model)
        self._buffers = {id(buffer) for buffer in model.buffers()}
        self._nodes: dict[str, OpNode] = {}
        self._index: dict[tuple[Any, ...], str] = {}
        self._constants: dict[str, Tensor] = {}
        self._results: dict[fx.Node, Any] = {}
        self._spoilt: dict[str, str] = {}
        """Nodes whose memory was changed through a view of them, with the changing node: they may not be read."""
        self._names: dict[fx.Node, str] = {}
        """Our node for the current value of each torch.fx node: a change in place moves it on."""

    def graph(self, traced: fx.Graph) -> OpGraph:
        """Return the graph. Raise `RewritesRefusedError` if a change in place may be visible elsewhere."""
        for order, node in enumerate(traced.nodes):
            self._read(node, float(order))
        return assembled(self._nodes, self._constants)

    def _read(self, node: fx.Node, order: float) -> None:
        if node.op == "placeholder":
            if node.target in self._given:
                value = self._given[str(node.target)]
                self._results[node] = value
                meta = value_of(value) if isinstance(value, Tensor) else meta_of(value, grad=False)
                self._add(node, OpNode("input", (("name", str(node.target)),), (), meta, order))
            return
        if node.op == "get_attr":
            self._leaf(node, str(node.target), order)
            return
        if node.op == "output":
            template, inputs = self._template(node.args, {})
            self._nodes[OUTPUT] = OpNode(OUTPUT, (("arguments", template),), inputs, None, order)
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
        self._add(node, OpNode(operator, settings, inputs, meta, order, effect))
        if changes is not None and not self._is_buffer(changes):
            self._change(changes, node)

    def _has_grad(self, node: fx.Node, operator: str, inputs: tuple[str, ...]) -> bool:
        if node.target in ("detach", torch.ops.aten.detach.default, torch.ops.aten.detach_.default):
            return False
        if operator == "module" and any(one.requires_grad for one in self._submodule(node).parameters()):
            return True
        return any(has_grad(self._nodes[one].meta) for one in inputs)

    def _called(
        self, node: fx.Node, args: Any, kwargs: Any
    ) -> tuple[Any, tuple[str, Attributes, tuple[str, ...]] | fx.Node, str]:
        """Return the result of a call, its operator with settings and inputs, and its effect."""
        if node.op == "call_module":
            layer = self._submodule(node)
            result = layer(*args, **kwargs)
            own = "forward" in vars(layer)  # the computation of a layer with a replaced forward is unknown
            if type(layer) is nn.Identity and not own and isinstance(node.args[0], fx.Node):
                return result, node.args[0], ""
            reader = None if own else LAYERS.get(type(layer))
            read = self._try(reader, node, (layer, *node.args), node.kwargs, result)
            known = self._known(read, str(node.target)) or self._opaque(node, "module", "path", str(node.target))
            if known[0] == "module" and self._changes(node) is not None:
                known = known[0], attributes({**dict(known[1]), "in_place": True}), known[2]
            return result, known, ("random" if own else layer_effect(layer)) if known[0] == "module" else ""
        if node.op == "call_method":
            name = str(node.target)
            plain = name[:-1] if _in_place(name) else name
            if not hasattr(torch.Tensor, plain):
                raise RewritesRefusedError(f"{node.name}: the method {name} changes a tensor in place")
            result = getattr(args[0], plain)(*args[1:], **kwargs)
            read = self._try(METHODS.get(plain), node, node.args, node.kwargs, result)
            known = self._known(read) or self._opaque(node, "method", "target", plain)
            return result, known, effect_of(plain) if known[0] == "method" else ""
        target = node.target
        if not callable(target) or target is python.setitem:
            raise RewritesRefusedError(f"{node.name}: the forward writes into a tensor in place")
        function: Callable[..., Any] = out_of_place(target) or target
        if (
            target in aten.CASTS
            and (result := target(*args, **kwargs)) is args[0]
            and isinstance(node.args[0], fx.Node)
        ):
            return result, node.args[0], ""  # torch.export records the type that a tensor already has
        if isinstance(target, OpOverload) and aten.changes_its_input(target):
            if self._is_buffer(node.args[0]):
                return target(*args, **kwargs), self._counted(node), "buffers"
            function = aten.without_change(target)
        settings = {key: value for key, value in node.kwargs.items() if key != "inplace"}
        plain_kwargs = {key: value for key, value in kwargs.items() if key != "inplace"}
        result = function(*args, **plain_kwargs)
        read = self._try(FUNCTIONS.get(function) or aten.READERS.get(function), node, node.args, settings, result)
        known = self._known(read) or self._opaque(node, "call", "target", function, settings)
        return result, known, effect_of(function) if known[0] == "call" else ""

    def _try(
        self, reader: Callable[..., Read | None] | None, node: fx.Node, args: Any, kwargs: Any, result: Any
    ) -> Read | None:
        """Return a call as an operator of the rules; None if they do not know it."""
        if reader is None or not isinstance(result, Tensor):
            return None
        try:
            inspect.signature(reader).bind(*args, **kwargs)
        except TypeError:
            return None
        read = reader(*args, **kwargs)
        if read is None or ("scalar" in read[2] and not result.is_floating_point()):
            return None  # rules compute with real numbers
        if read[0] == "transpose" and result.dim() != _MATRIX and (len(args) + len(kwargs) == 1 or args[1:] == ("T",)):
            return None  # `T` reverses all of more dimensions, and `t` keeps a single one
        if read[0] == "linear" and isinstance(read[1][1], fx.Node) and self._results[read[1][1]].dim() != _MATRIX:
            return None  # a vector gives one number per row, and rules concatenate outputs
        if read[0] == "linear" and len(read[1]) > _MATRIX and isinstance(read[1][2], fx.Node):
            bias = self._results[read[1][2]]
            if not isinstance(bias, Tensor) or bias.shape != result.shape[-1:]:
                return None  # one number for all outputs: rules concatenate biases, too
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
            changes = out_of_place(node.target) is not None or node.kwargs.get("inplace") is True
            changes = changes or aten.changes_its_input(node.target)
            changes = changes or (node.target in _INPLACE_SECOND and len(node.args) > 1 and node.args[1] is True)
        first = node.args[0] if node.args else None
        return first if changes and isinstance(first, fx.Node) and self._is_tensor(first) else None

    def _change(self, changed: fx.Node, by: fx.Node) -> None:
        """Make later readers of `changed` read the result of `by`."""
        name = self._names[changed]
        self._check_alone(name, self._names[by], by)
        for each, its in self._names.items():
            if its == name:
                self._names[each] = self._names[by]

    def _check_alone(self, name: str, by: str, at: fx.Node) -> None:
        """Raise `RewritesRefusedError` if others may see the memory that `by` changes; record the spoilt nodes."""
        node = self._nodes[name]
        readers = [each for other, each in self._nodes.items() if name in each.inputs and other != by]
        viewed = node.operator in VIEWS or (node.operator == "method" and node.get("target") in _VIEWING)
        if any(self._may_share(each) for each in readers) or (self._may_share(node) and not viewed):
            raise RewritesRefusedError(
                f"{at.name} changes a tensor in place that others may see ({name}); compute a new one instead"
            )
        if viewed:
            self._spoilt[node.inputs[0]] = at.name
            self._check_alone(node.inputs[0], name, at)

    def _may_share(self, node: OpNode) -> bool:
        """Return whether a node's output may share memory with another."""
        if node.operator == "module":
            return isinstance(self._model.get_submodule(node.get("path")), _MAY_SHARE)
        if isinstance(node.get("target"), OpOverload):
            return aten.may_return_its_input(node.get("target"))
        if node.operator == "method" and node.get("target") in _NEW:
            return False
        return node.operator in VIEWS or node.operator in LEAVES or node.operator in ("call", "method")

    def _is_buffer(self, value: Any) -> bool:
        return isinstance(value, fx.Node) and value.op == "get_attr" and id(self._results[value]) in self._buffers

    def _counted(self, node: fx.Node) -> tuple[str, Attributes, tuple[str, ...]]:
        """Return the change of a buffer without other readers: batch norms count their steps."""
        if node.users or any(len(one.users) > 1 for one in node.all_input_nodes):
            raise RewritesRefusedError("the forward changes a buffer by its own code, not by a layer of torch")
        return self._opaque(node, "call", "target", node.target)

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
            raise RewritesRefusedError(f"{path!r} is not a tensor")
        if id(tensor) not in self._buffers:
            self._constants[path] = tensor
        self._add(node, OpNode("constant", (("path", path),), (), value_of(tensor), order))

    def _parameter(self, path: str) -> str:
        owner, _, name = path.rpartition(".")
        parameter = getattr(self._model.get_submodule(owner), name)
        first = self._paths[id(parameter)]  # a tied parameter has several paths
        node = f"@{first}"  # no other node has this name
        if node not in self._nodes:
            self._nodes[node] = OpNode("parameter", (("path", first),), (), value_of(parameter), -1.0)
        return node

    def _real(self, arguments: Any) -> Any:
        return fx.map_arg(arguments, lambda one: self._results[one])

    def _add(self, node: fx.Node, made: OpNode) -> None:
        for one in made.inputs:
            if one in self._spoilt:
                raise RewritesRefusedError(f"{node.name} reads {one}, which {self._spoilt[one]} has changed in place")
        self._nodes[node.name] = made
        self._names[node] = node.name


_MATRIX = 2

_VIEWING = frozenset({"view", "reshape", "permute", "unsqueeze", "squeeze", "contiguous"})
"""Methods of a tensor whose result may share memory with it, and with no other."""

_NEW = frozenset({"new_empty", "new_zeros", "new_ones", "new_full", "clone", "bernoulli"})
"""Methods of a tensor whose result has separate memory."""

_INPLACE_SECOND = frozenset({nn.functional.relu, nn.functional.silu})
"""Functions whose second argument is `inplace`."""


def _in_place(method: str) -> bool:
    return method.endswith("_") and not method.endswith("__")


def _items(value: Any) -> list[Any]:
    return list(value) if isinstance(value, tuple | list) else [value]
