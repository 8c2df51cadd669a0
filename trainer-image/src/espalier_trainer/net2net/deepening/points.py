"""Search of a trace for places where a model can be deepened, with a reason for every other layer.

A place is a layer (linear or convolution) whose output reaches an activation through normalisation, dropout and
additions only: without an activation in between, two layers compute no more than one (Lamelas, figure 3). If the model
has marked blocks, only these are places. A place is named by the path of its mark or its layer. The search ignores all
modules that growth has added, so ids are the same before and after any growth.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from torch import nn

from espalier_core.growth.architecture import GrowthError, GrowthPoint
from espalier_core.types.job import Insertion
from espalier_trainer.net2net.blocks import STACK, DeepenBlock, GrownStack
from espalier_trainer.net2net.deepening.conditions import (
    TRANSPARENT,
    InsertionRefusedError,
    called_functions,
    channels_of,
    check_layer,
    own_activations,
    own_layers,
    reasons_of_layers,
    tied_weights,
    way,
    why_no_mark,
    within,
)
from espalier_trainer.net2net.deepening.insertion import (
    SLOPE_AT_ZERO,
    DeepeningBlock,
    Norm,
    block_like,
    insertion_layers,
)
from espalier_trainer.net2net.refusals import Refusal, refusal
from espalier_trainer.net2net.trace.graph import Graph, Operation
from espalier_trainer.net2net.trace.operators import (
    ACTIVATIONS,
    BATCH_NORMS,
    LAYERS,
    NORM_FUNCTIONS,
    OFFSET_AT_ZERO,
)

_MAX_ADDITIONS = 3
"""Maximum number of additions between a layer's output and its activation."""


@dataclass(frozen=True, slots=True)
class InsertionPoint:
    """A growth point, with everything needed to grow it."""

    id: str
    layer: str
    """Path of the layer that growth repeats."""
    host: str
    """Path of the module after whose output new blocks are inserted."""
    block: DeepeningBlock
    after: str
    """The operation whose output the next insertion reads."""
    grown: int

    def without_neighbours(self) -> InsertionPoint:
        """Return the point with an insertion that mixes channels only, not positions."""
        return replace(self, block=self.block.without_neighbours())

    @property
    def stack(self) -> str:
        """Path of the host's `GrownStack`."""
        return f"{self.host}.{STACK}" if self.host else STACK

    def point(self, insertion: Insertion) -> GrowthPoint:
        """Return the point as the `GrowthPoint` of a description, for this kind of insertion."""
        return GrowthPoint(
            id=self.id,
            kind=self.block.operator,
            after=self.after,
            block=self.stack,
            grown=self.grown,
            insertion=insertion_layers(self.block.variant(insertion)),
        )


@dataclass(frozen=True)
class InsertionPoints:
    """All insertion points of a model in execution order, and the refusal of each other layer or mark."""

    found: tuple[InsertionPoint, ...]
    refused: dict[str, Refusal]

    def without(self, model: nn.Module, failed: Mapping[str, str | InsertionRefusedError]) -> InsertionPoints:
        """Return the insertion points without the places that failed a trial, which are refused with the reasons."""
        return InsertionPoints(
            tuple(place for place in self.found if place.id not in failed), self.refused | _refusals(model, failed)
        )

    def get(self, point_id: str) -> InsertionPoint:
        """Return the place with this id; raise `GrowthError` with the refusal's reason, or with the known ids."""
        for place in self.found:
            if place.id == point_id:
                return place
        if point_id in self.refused:
            raise GrowthError(f"{point_id!r} cannot be deepened: {self.refused[point_id]}")
        known = ", ".join(place.id for place in self.found) or "none"
        raise GrowthError(f"{point_id!r} is not a growth point of this model; its growth points: {known}")


def _refusals(model: nn.Module, reasons: Mapping[str, str | InsertionRefusedError]) -> dict[str, Refusal]:
    return {
        path: refusal(model, path.partition(":")[0], str(why), _REMEDY, getattr(why, "at", ""))
        for path, why in reasons.items()
    }


_REMEDY = "call it by itself, `y = self.layer(x)`; within a module of torch it cannot grow: add a whole block"
"""Remedy where a reason names none."""


def find_insertion_points(model: nn.Module, graph: Graph) -> InsertionPoints:
    """Return the places where `model`, traced as `graph`, can be deepened."""
    return _Search(model, graph).places()


@dataclass(frozen=True, slots=True)
class _Chain:
    """A layer before an activation."""

    layer: Operation
    norm: Operation | None
    additions: int


class _Search:
    def __init__(self, model: nn.Module, graph: Graph) -> None:
        self._model = model
        self._grown = graph
        self._graph = graph.ungrown()
        self._modules = dict(model.named_modules())
        self._tied = tied_weights(model)
        marks: list[str] = []
        for path, module in self._modules.items():
            if isinstance(module, DeepenBlock) and not any(within(path, outer) for outer in marks):
                marks.append(path)
        self._marks = tuple(marks)
        self._layers = own_layers(self._modules, self._graph)
        self._activations = own_activations(self._modules, self._graph)

    def places(self) -> InsertionPoints:
        found: list[InsertionPoint] = []
        refused: dict[str, str | InsertionRefusedError] = {**reasons_of_layers(self._modules, self._graph, self._marks)}
        hosts: set[str] = set()
        for wanted, activation, chain in self._candidates():
            point_id = wanted
            if any(place.id == wanted for place in found):
                point_id = f"{wanted}:{activation.name}"
            try:
                place = self._place(point_id, activation, chain)
                if place.host in hosts:
                    raise InsertionRefusedError(f"the place after {place.host!r} is already another growth point")
            except InsertionRefusedError as reason:
                refused[point_id] = reason
                continue
            hosts.add(place.host)
            refused.pop(point_id, None)
            found.append(place)
        settled = {place.id for place in found} | set(refused)
        refused |= {mark: why_no_mark(mark, self._graph) for mark in self._marks if mark not in settled}
        functions = called_functions(self._modules, self._graph, self._layers.values())
        return InsertionPoints(tuple(found), _refusals(self._model, refused) | functions)

    def _candidates(self) -> Iterator[tuple[str, Operation, _Chain]]:
        """Yield id, activation and layer of every place that has an activation after a layer."""
        if self._graph.data_dependent and not self._marks:
            return
        last: dict[str, tuple[Operation, _Chain]] = {}
        whole = {str(operation.module) for operation in self._activations.values()}
        for name, step in self._graph.operations.items():
            operation = self._activations.get(name, step)
            if operation.operator not in ACTIVATIONS or not operation.inputs:
                continue
            if operation is step and step.scope in whole:
                continue  # a step of an activation that is one place as a whole
            chain = self._layer_before(operation.inputs[0], 0)
            if chain is None or chain.layer.module is None:
                continue
            if not self._marks:
                yield chain.layer.module, operation, chain
            mark = next((path for path in self._marks if within(operation.scope, path)), None)
            if mark is not None and within(chain.layer.module, mark):
                last[mark] = (operation, chain)
        order = {name: place for place, name in enumerate(self._graph.operations)}
        for mark, (operation, chain) in sorted(last.items(), key=lambda item: order[item[1][0].name]):
            yield mark, operation, chain

    def _layer_before(self, name: str, additions: int) -> _Chain | None:
        """Return the layer whose output reaches operation `name`; at additions the shortest path counts."""
        norm: Operation | None = None
        while True:
            operation = self._layers.get(name, self._graph.operations[name])
            if operation.operator in LAYERS and operation.module is not None:
                return _Chain(operation, norm, additions)
            through = way(self._graph, operation)
            if through is not None:
                name = through
                continue
            if operation.operator == "Add" and additions < _MAX_ADDITIONS:
                ways = [self._layer_before(given, additions + 1) for given in operation.inputs]
                found = [way for way in ways if way is not None]
                best = min(found, key=lambda way: way.additions, default=None)
                return best and _Chain(best.layer, norm or best.norm, best.additions)
            if operation.operator not in TRANSPARENT or not operation.inputs:
                return None
            if operation.operator in BATCH_NORMS | NORM_FUNCTIONS and norm is None:
                norm = operation
            name = operation.inputs[0]

    def _place(self, point_id: str, activation: Operation, chain: _Chain) -> InsertionPoint:
        layer = chain.layer
        check_layer(layer, self._modules, self._graph, self._tied)
        # Not the activation's own shape: a stack before it may have been widened.
        read = self._graph.operations[activation.inputs[0]].shape
        if read != layer.shape:
            raise InsertionRefusedError(
                f"its output has shape {layer.shape}, the activation {activation.name!r} after it "
                f"{read}; only a layer that keeps the shape can be inserted there"
            )
        if activation.attributes.get(SLOPE_AT_ZERO.get(activation.operator, "")) == 0:
            raise InsertionRefusedError(
                f"the activation {activation.name!r} after it is {activation.operator} with "
                f"{dict(activation.attributes)}, of slope 0 at 0, where a zero branch never learns; use ReLU"
            )
        host, activation_first = self._host(point_id, activation)
        block = block_like(
            self._modules[str(layer.module)], self._graph, layer, activation, activation_first, self._norm(chain)
        )
        stack = f"{host}.{STACK}" if host else STACK
        before = getattr(self._modules[host], STACK, None)
        if before is not None and not isinstance(before, GrownStack):
            raise InsertionRefusedError(f"{host!r} already has an attribute {STACK!r}; give it another name")
        if isinstance(before, GrownStack):
            last = self._grown.operations[self._grown.stacks[stack].output]
            block = block.widened(channels_of(layer, last.shape or ()))
            inserted = getattr(before[-1], "conv", None)
            if isinstance(inserted, nn.modules.conv._ConvNd) and max(inserted.kernel_size) == 1:
                block = block.without_neighbours()
            return InsertionPoint(point_id, str(layer.module), host, block, last.name, len(before))
        after = activation.inputs[0] if activation_first else activation.name
        return InsertionPoint(point_id, str(layer.module), host, block, after, 0)

    def _host(self, point_id: str, activation: Operation) -> tuple[str, bool]:
        """Return the module after which the block is inserted, and whether the activation comes after it."""
        if activation.operator not in OFFSET_AT_ZERO:
            if point_id in self._marks and self._hosts(point_id, activation.name):
                return point_id, False
            after = self._innermost_host(activation)
            if after is not None:
                return after, False
        given = self._graph.operations[activation.inputs[0]]
        alone = self._graph.consumers[given.name] == (activation.name,) and given.name not in self._graph.outputs
        before = self._innermost_host(given) if alone else None
        if before is not None:
            return before, True
        if given.in_hook:
            raise InsertionRefusedError(
                f"a forward hook changes the output of {given.inputs[0]!r} before the activation, and growth is "
                "inserted where the forward returns; compute that in a forward, or give the activation a separate "
                "module",
                given.written_at,
            )
        what = f"the activation {activation.name!r}"
        if activation.module is not None and self._graph.calls[activation.module] > 1:
            what += f" (called {self._graph.calls[activation.module]} times)"
        raise InsertionRefusedError(
            f"neither {what} nor {given.name!r} before it is the output of a module called once; "
            "give the activation a separate module"
        )

    def _innermost_host(self, operation: Operation) -> str | None:
        if operation.module is not None and self._graph.calls[operation.module] == 1:
            return operation.module
        fitting = [path for path in self._graph.results if path and self._hosts(path, operation.name)]
        return max(fitting, key=lambda path: path.count("."), default=None)

    def _hosts(self, path: str, name: str) -> bool:
        """Return whether the module's only call returned operation `name`, and nothing inside the module reads it."""
        module = self._modules[path]
        own_order = isinstance(module, nn.Sequential) and type(module).forward is not nn.Sequential.forward
        if own_order or isinstance(module, nn.ModuleList | nn.ModuleDict):
            return False  # its forward may iterate over its children, which would include `grown`
        return (
            self._graph.calls.get(path) == 1
            and self._graph.results.get(path) == name
            and not any(within(self._graph.operations[reader].scope, path) for reader in self._graph.consumers[name])
        )

    def _norm(self, chain: _Chain) -> Norm | None:
        """Return the batch norm for the block, if one of this kind fits after the new layer."""
        if chain.norm is None or (chain.layer.operator == "Linear" and len(chain.layer.shape or ()) != 2):
            return None
        module = self._modules[chain.norm.scope if chain.norm.module is None else chain.norm.module]
        kind = next((one.__name__ for one in type(module).__mro__ if one.__name__ in BATCH_NORMS), None)
        if kind is None or not isinstance(module, nn.modules.batchnorm._BatchNorm):
            return None
        return Norm(kind, module.eps, module.momentum)
