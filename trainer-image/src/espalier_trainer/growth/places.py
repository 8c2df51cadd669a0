"""At how many places of an example the layers of a model are applied: what the cost of a step depends on."""

from __future__ import annotations

from math import prod

from torch import nn

from espalier_core.growth.architecture import GrowthError
from espalier_trainer.net2net.modules import ExampleInput
from espalier_trainer.net2net.trace.graph import Graph, Operation
from espalier_trainer.net2net.trace.tracing import trace

_CHANNELS = ("out_channels", "out_features", "num_features", "num_channels")


def places(model: nn.Module, example_input: ExampleInput) -> dict[str, int]:
    """Return for each operation with weights how many places of an example it is applied at; see `step_seconds`.

    Raises `GrowthError` where the model cannot be run on the example.
    """
    return places_of(trace(model, example_input))


def known_places(model: nn.Module, example_input: ExampleInput) -> dict[str, int]:
    """Return the same, and nothing where the model cannot be run: then a growth's cost is not known."""
    try:
        return places(model, example_input)
    except GrowthError:
        return {}


def places_of(graph: Graph) -> dict[str, int]:
    """Return the places of a traced model's operations with weights."""
    found = {}
    for name, operation in graph.operations.items():
        if operation.parameters:
            here = _places(operation)
            if here is None:
                inputs = [graph.operations[one] for one in operation.inputs]
                here = next((size for one in inputs if (size := _places(one)) is not None), 1)
            found[name] = here
    return found


def _places(operation: Operation) -> int | None:
    if operation.shape is None or len(operation.shape) < 2:
        return None
    channels = next((operation.attributes[key] for key in _CHANNELS if key in operation.attributes), None)
    width = channels if isinstance(channels, int) and channels > 0 else operation.shape[-1]
    return max(1, prod(operation.shape[1:]) // max(1, width))
