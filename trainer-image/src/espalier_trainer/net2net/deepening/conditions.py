"""The conditions under which a layer can be repeated, and the messages for each one that fails."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from espalier_trainer.net2net.refusals import Reason, why_parametrized, why_transposed
from espalier_trainer.net2net.trace.graph import Graph, Operation
from espalier_trainer.net2net.trace.operators import ACTIVATIONS, BATCH_NORMS, LAYER_CLASSES, LAYERS, NORM_FUNCTIONS

TRANSPARENT = BATCH_NORMS | NORM_FUNCTIONS | {
    "LayerNorm", "GroupNorm", "RMSNorm", "InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d", "LocalResponseNorm",
    "Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout", "FeatureAlphaDropout", "Identity",
}  # fmt: skip
"""What may lie between a layer and its activation, besides additions."""


class RefusedError(Exception):
    """A place fails a condition; the text completes `... cannot be deepened: `."""

    def __init__(self, reason: str, at: str = "") -> None:
        """`at` is file and line of the call that decides, `model.py:12`; empty where it is the forward as a whole."""
        super().__init__(reason)
        self.at = at

    @classmethod
    def of(cls, reason: Reason) -> RefusedError:
        """Return the refusal for this reason."""
        return cls(f"{reason.text}; {reason.remedy}", reason.at)


def check_layer(layer: Operation, modules: Mapping[str, nn.Module], graph: Graph, tied: Mapping[str, str]) -> None:
    """Raise `RefusedError` unless the layer can be repeated: called once, an unshared weight, a batch of channels."""
    path = str(layer.module)
    calls = graph.calls[path]
    if calls > 1:
        if path in graph.reached(f"{path}:1"):
            raise RefusedError(
                f"{path!r} is called {calls} times, on what comes of its own result, and growth would change each "
                "call; grow another layer, or give each call a separate module, with weights of its own"
            )
        raise RefusedError(
            f"{path!r} is called {calls} times and growth would change each call; concatenate what the calls are "
            "given and call it once (`torch.cat`, then `chunk`), or give each call a separate module"
        )
    if why := why_parametrized(path, modules[path]):
        raise RefusedError(why)
    if path in tied:
        raise RefusedError(f"{path!r} shares a parameter with {tied[path]!r}; untie them before growth")
    dimensions = LAYERS[layer.operator]
    shape = layer.shape or ()
    if len(shape) != (dimensions + 2 if dimensions else max(2, len(shape))):
        raise RefusedError(f"{path!r} returns shape {shape}; expected a batch dimension before the channels")


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
    """Return whether `path` is the module or lies in it."""
    return not module or path == module or path.startswith(f"{module}.")


def reasons_of_layers(modules: Mapping[str, nn.Module], graph: Graph, marks: tuple[str, ...]) -> dict[str, str]:
    """Return for every layer the reason to give if it is not a growth point."""
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
    """Return why a marked block is not a growth point."""
    if not graph.calls.get(mark):
        return f"the marked block {mark!r} is not called as a whole in the model's forward"
    return (
        f"the marked block {mark!r} holds no activation after a layer; expected one of {', '.join(LAYERS)}, "
        f"normalisation if any, then one of {', '.join(sorted(ACTIVATIONS))}"
    )


def _why_no_activation(layer: Operation, graph: Graph) -> str:
    """Describe what comes after the layer instead of an activation."""
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
