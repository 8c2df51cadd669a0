"""Where a model can be deepened, found in its trace; and why not, for every other layer.

A place is a layer (linear or convolution) whose output reaches an activation through nothing but normalisation,
dropout and additions: between two layers without an activation a new one would add nothing (Lamelas, figure 3).
Marked blocks, where there are any, are the only places, and name them; else the layer's path does. Everything is
found in the network without what growth added to it, so ids are the same before and after any growth.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from espalier_api.architecture import GrowthError, GrowthPoint
from espalier_api.job import Insertion
from espalier_trainer.net2net.blocks import STACK, DeepenBlock, GrownStack
from espalier_trainer.net2net.insertion import ACTIVATIONS, OFFSET_AT_ZERO, Block, Norm, insertion_layers
from espalier_trainer.net2net.network import Network, Operation

LAYERS = {"Linear": 0, "Conv1d": 1, "Conv2d": 2, "Conv3d": 3}
"""Operators that growth repeats, with their number of spatial dimensions."""

_REPEATED = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)

_BATCH_NORMS = frozenset({"BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "SyncBatchNorm"})

_TRANSPARENT = _BATCH_NORMS | {
    "LayerNorm", "GroupNorm", "RMSNorm", "InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d", "LocalResponseNorm",
    "Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout", "FeatureAlphaDropout", "Identity",
}  # fmt: skip
"""What may lie between a layer and its activation, besides additions."""

_MAX_ADDITIONS = 3


@dataclass(frozen=True, slots=True)
class Place:
    """A growth point with what growing it needs."""

    id: str
    layer: str
    """Path of the layer that growth repeats."""
    host: str
    """Path of the module behind whose output new blocks go."""
    block: Block
    after: str
    """The operation whose output the next insertion reads."""
    grown: int

    @property
    def stack(self) -> str:
        """Path of the host's `GrownStack`."""
        return f"{self.host}.{STACK}" if self.host else STACK

    def point(self, insertion: Insertion) -> GrowthPoint:
        """Return the api's growth point, for this kind of insertion."""
        return GrowthPoint(
            id=self.id,
            kind=self.block.operator,
            after=self.after,
            block=self.stack,
            grown=self.grown,
            insertion=insertion_layers(self.block.variant(insertion)),
        )


@dataclass(frozen=True)
class Places:
    """All places of a model in execution order, and the reason for each layer or mark that is none."""

    found: tuple[Place, ...]
    refused: dict[str, str]

    def get(self, point_id: str) -> Place:
        """Return the place with this id; `GrowthError` says why it is none, or which there are."""
        for place in self.found:
            if place.id == point_id:
                return place
        if point_id in self.refused:
            raise GrowthError(f"{point_id!r} cannot be deepened: {self.refused[point_id]}")
        known = ", ".join(place.id for place in self.found) or "none"
        raise GrowthError(f"{point_id!r} is not a growth point of this model; its growth points: {known}")


class _RefusedError(Exception):
    """A place fails a condition; the text completes `... cannot be deepened: `."""


def find_places(model: nn.Module, network: Network) -> Places:
    """Return where `model`, of which `network` is the trace, can be deepened."""
    return _Search(model, network).places()


@dataclass(frozen=True, slots=True)
class _Chain:
    """A layer before an activation."""

    layer: Operation
    norm: Operation | None
    additions: int


class _Search:
    def __init__(self, model: nn.Module, network: Network) -> None:
        self._grown = network
        self._network = network.ungrown()
        self._modules = dict(model.named_modules())
        self._tied = _tied_weights(model)
        marks: list[str] = []
        for path, module in self._modules.items():
            if isinstance(module, DeepenBlock) and not any(_within(path, outer) for outer in marks):
                marks.append(path)
        self._marks = tuple(marks)

    def places(self) -> Places:
        found: list[Place] = []
        refused = dict(self._unreached_layers())
        hosts: set[str] = set()
        for wanted, activation, chain in self._candidates():
            point_id = wanted
            if any(place.id == wanted for place in found):
                point_id = f"{wanted}:{activation.name}"
            try:
                place = self._place(point_id, activation, chain)
                if place.host in hosts:
                    raise _RefusedError(f"the place behind {place.host!r} is already another growth point")
            except _RefusedError as reason:
                refused[point_id] = str(reason)
                continue
            hosts.add(place.host)
            refused.pop(point_id, None)
            found.append(place)
        settled = {place.id for place in found} | set(refused)
        refused |= {mark: self._why_no_mark(mark) for mark in self._marks if mark not in settled}
        return Places(tuple(found), refused)

    def _candidates(self) -> Iterator[tuple[str, Operation, _Chain]]:
        """Yield id, activation and layer of every place that has an activation behind a layer."""
        if self._network.data_dependent and not self._marks:
            return
        last: dict[str, tuple[Operation, _Chain]] = {}
        for operation in self._network.operations.values():
            if operation.operator not in ACTIVATIONS or not operation.inputs:
                continue
            chain = self._layer_before(operation.inputs[0], 0)
            if chain is None or chain.layer.module is None:
                continue
            if not self._marks:
                yield chain.layer.module, operation, chain
            mark = next((path for path in self._marks if _within(operation.scope, path)), None)
            if mark is not None and _within(chain.layer.module, mark):
                last[mark] = (operation, chain)
        order = {name: place for place, name in enumerate(self._network.operations)}
        for mark, (operation, chain) in sorted(last.items(), key=lambda item: order[item[1][0].name]):
            yield mark, operation, chain

    def _layer_before(self, name: str, additions: int) -> _Chain | None:
        """Return the layer whose output reaches operation `name`, through additions by the shortest way."""
        norm: Operation | None = None
        while True:
            operation = self._network.operations[name]
            if operation.operator in LAYERS and operation.module is not None:
                return _Chain(operation, norm, additions)
            if operation.operator == "Add" and additions < _MAX_ADDITIONS:
                ways = [self._layer_before(given, additions + 1) for given in operation.inputs]
                found = [way for way in ways if way is not None]
                best = min(found, key=lambda way: way.additions, default=None)
                return best and _Chain(best.layer, norm or best.norm, best.additions)
            if operation.operator not in _TRANSPARENT or not operation.inputs:
                return None
            if operation.operator in _BATCH_NORMS and operation.module is not None and norm is None:
                norm = operation
            name = operation.inputs[0]

    def _place(self, point_id: str, activation: Operation, chain: _Chain) -> Place:
        layer = chain.layer
        self._check_layer(layer)
        if activation.shape != layer.shape:
            raise _RefusedError(
                f"its output has shape {layer.shape}, the activation {activation.name!r} behind it "
                f"{activation.shape}; a layer that changes no shape has no place there"
            )
        host, activation_first = self._host(point_id, activation)
        block = _block(self._modules[str(layer.module)], layer, activation, activation_first, self._norm(chain))
        stack = f"{host}.{STACK}" if host else STACK
        before = getattr(self._modules[host], STACK, None)
        if before is not None and not isinstance(before, GrownStack):
            raise _RefusedError(f"{host!r} has an attribute {STACK!r} of its own; give it another name")
        if isinstance(before, GrownStack):
            return Place(point_id, str(layer.module), host, block, self._grown.stacks[stack].output, len(before))
        after = activation.inputs[0] if activation_first else activation.name
        return Place(point_id, str(layer.module), host, block, after, 0)

    def _check_layer(self, layer: Operation) -> None:
        path = str(layer.module)
        module = self._modules[path]
        if self._network.calls[path] > 1:
            raise _RefusedError(
                f"{path!r} is called {self._network.calls[path]} times; growth would change each call. "
                "Give each call a module of its own"
            )
        if is_parametrized(module) or "weight" not in module._parameters:
            raise _RefusedError(
                f"the weight of {path!r} is parametrized (weight or spectral norm); "
                "remove the parametrization before growth"
            )
        if path in self._tied:
            raise _RefusedError(
                f"the weight of {path!r} is tied to that of {self._tied[path]!r}; untie them before growth"
            )
        dimensions = LAYERS[layer.operator]
        shape = layer.shape or ()
        expected = dimensions + 2 if dimensions else max(2, len(shape))
        if len(shape) != expected:
            raise _RefusedError(
                f"{path!r} returns shape {shape}; expected a batch dimension before channels "
                f"and {dimensions} spatial dimensions" if dimensions
                else f"{path!r} returns shape {shape}; expected a batch dimension before the features"
            )  # fmt: skip

    def _host(self, point_id: str, activation: Operation) -> tuple[str, bool]:
        """Return the module behind which the block goes, and whether the activation comes behind it."""
        if activation.operator not in OFFSET_AT_ZERO:
            if point_id in self._marks and self._hosts(point_id, activation.name):
                return point_id, False
            behind = self._innermost_host(activation)
            if behind is not None:
                return behind, False
        given = self._network.operations[activation.inputs[0]]
        alone = self._network.consumers[given.name] == (activation.name,) and given.name not in self._network.outputs
        before = self._innermost_host(given) if alone else None
        if before is not None:
            return before, True
        what = f"the activation {activation.name!r}"
        if activation.module is not None and self._network.calls[activation.module] > 1:
            what += f" (called {self._network.calls[activation.module]} times)"
        raise _RefusedError(
            f"neither {what} nor {given.name!r} before it is the output of a module called once; "
            "give the activation a module of its own"
        )

    def _innermost_host(self, operation: Operation) -> str | None:
        if operation.module is not None and self._network.calls[operation.module] == 1:
            return operation.module
        fitting = [path for path in self._network.results if path and self._hosts(path, operation.name)]
        return max(fitting, key=lambda path: path.count("."), default=None)

    def _hosts(self, path: str, name: str) -> bool:
        """Tell whether the module's only call returned operation `name`, and nothing inside read it as well."""
        module = self._modules[path]
        own_order = isinstance(module, nn.Sequential) and type(module).forward is not nn.Sequential.forward
        if own_order or isinstance(module, nn.ModuleList | nn.ModuleDict):
            return False  # its forward may well run over its children, of which `grown` would be one
        return (
            self._network.calls.get(path) == 1
            and self._network.results.get(path) == name
            and not any(
                _within(self._network.operations[reader].scope, path) for reader in self._network.consumers[name]
            )
        )

    def _norm(self, chain: _Chain) -> Norm | None:
        """Return the batch norm that the block has, where one of its kind fits behind the new layer."""
        if chain.norm is None or chain.norm.module is None:
            return None
        if chain.layer.operator == "Linear" and len(chain.layer.shape or ()) != 2:
            return None
        module = self._modules[chain.norm.module]
        if not isinstance(module, nn.modules.batchnorm._BatchNorm):
            return None
        return Norm(chain.norm.operator, module.eps, module.momentum)

    def _unreached_layers(self) -> Iterator[tuple[str, str]]:
        """Yield for every layer why it is no place, as far as that is seen from the layer alone."""
        for path, module in self._modules.items():
            if isinstance(module, _REPEATED) and path not in self._network.calls:
                yield path, f"{path!r} is not called by itself in the model's forward"
        for operation in self._network.operations.values():
            if operation.operator not in LAYERS or operation.module is None:
                continue
            path = operation.module
            if self._marks:
                mark = next((mark for mark in self._marks if _within(path, mark)), None)
                yield path, (
                    f"the model marks its places; name the mark {mark!r} instead" if mark
                    else "the model marks its places with DeepenBlock, and this layer is in none; mark it"
                )  # fmt: skip
            else:
                yield path, self._why_no_activation(operation)

    def _why_no_activation(self, layer: Operation) -> str:
        """Say what comes behind the layer instead of an activation."""
        waiting = [layer.name]
        seen: set[str] = set()
        while waiting:
            name = waiting.pop(0)
            for reader in self._network.consumers[name]:
                operation = self._network.operations[reader]
                passed = operation.operator in _TRANSPARENT or operation.operator == "Add"
                if not passed and operation.operator not in ACTIVATIONS:
                    return (
                        f"expected an activation behind {layer.name!r} (through normalisation, dropout or addition), "
                        f"found {operation.operator} {operation.name!r}; put an activation there or mark another place"
                    )
                if passed and reader not in seen:
                    seen.add(reader)
                    waiting.append(reader)
        return (
            f"no activation comes behind {layer.name!r}; a new layer there would be one with it. "
            "Put an activation behind it"
        )

    def _why_no_mark(self, mark: str) -> str:
        if not self._network.calls.get(mark):
            return f"the marked block {mark!r} is not called as a whole in the model's forward"
        return (
            f"the marked block {mark!r} holds no activation behind a layer; "
            f"expected {' or '.join(LAYERS)}, then normalisation if any, then one of {', '.join(sorted(ACTIVATIONS))}"
        )


def _block(
    module: nn.Module, layer: Operation, activation: Operation, activation_first: bool, norm: Norm | None
) -> Block:
    """Return what one insertion behind `layer` consists of."""
    attributes = tuple(sorted(activation.attributes.items()))
    if not isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d):
        channels = int(str(layer.attributes["out_features"]))
        return Block("Linear", channels, activation.operator, attributes, activation_first, norm=norm)
    block = Block(
        operator=layer.operator,
        channels=module.out_channels,
        activation=activation.operator,
        activation_attributes=attributes,
        activation_first=activation_first,
        kernel_size=tuple(module.kernel_size),
        dilation=tuple(module.dilation),
        # A depthwise convolution stays one where it multiplies its channels; other groups divide the output anyway.
        groups=module.out_channels if module.groups == module.in_channels > 1 else module.groups,
        padding_mode=module.padding_mode,
        norm=norm,
    )
    return block if _fits(block, (layer.shape or ())[2:]) else replace(block, padding_mode="zeros")


def _fits(block: Block, size: tuple[int, ...]) -> bool:
    """Tell whether the padding can be read out of a map of this size."""
    room = {"reflect": 1, "circular": 0}.get(block.padding_mode)
    return room is None or all(max(sides) + room <= side for sides, side in zip(block.sides, size, strict=True))


def _within(path: str, module: str) -> bool:
    """Tell whether `path` is the module or lies in it."""
    return not module or path == module or path.startswith(f"{module}.")


def _tied_weights(model: nn.Module) -> dict[str, str]:
    """Return, for each module of which a parameter is another module's as well, that other module's path."""
    owners: dict[int, list[str]] = {}
    for path, module in model.named_modules():
        for parameter in module._parameters.values():
            if parameter is not None:
                owners.setdefault(id(parameter), []).append(path)
    return {
        path: next(other for other in paths if other != path)
        for paths in owners.values() if len(set(paths)) > 1
        for path in paths
    }  # fmt: skip
