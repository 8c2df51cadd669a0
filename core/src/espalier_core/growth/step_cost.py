"""The cost of a training step by a description: a model of the time, which is the same on every machine.

A step costs a fixed time for each operation, and the arithmetic of its weights: two operations a weight, place and
example forward, four backward, and one update a weight. Times that are measured depend on the machine and its load;
decisions about growth need the ratio of two steps, which this gives without running anything. The constants were
fitted by eye to 22 small models on one core, where most ratios came within a third.

`mixes` tells which layers let places of an example (pixels, samples, tokens) see each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from espalier_core.growth.architecture import WEIGHT_OPERATORS, Architecture, Layer

OPERATION_SECONDS: Final = 4e-5
"""For an operation, forward and backward."""
WEIGHTED_SECONDS: Final = 6e-5
"""More for one with weights: their gradients and their update."""
MULTIPLICATIONS_PER_SECOND: Final = 1.2e10
"""Of small matrices, on one core."""
UPDATES_PER_SECOND: Final = 4e8
"""Of weights by an optimizer with two moments."""
RECURRENT: Final = frozenset({"RNN", "LSTM", "GRU"})
"""Operators that take one place after the other."""
PLACE_SECONDS: Final = 1.2e-4
"""For each place of a recurrent operator."""
PASSES: Final = 3
"""A backward pass has twice the arithmetic of a forward pass."""
ATTENTION: Final = ("attention", "Attention", "Softmax")
"""Parts of the names of operators that mix tokens."""


def layer_seconds(layer: Layer, places: int, batch_size: int) -> float:
    """Return the modelled seconds of one layer in a training step on `batch_size` examples.

    `places` says at how many places of an example it is applied: pixels, tokens, or 1.
    """
    seconds = OPERATION_SECONDS + PLACE_SECONDS * places * (layer.operator in RECURRENT)
    # A table of embeddings is read, not multiplied.
    if layer.parameters and layer.operator != "Embedding":
        seconds += WEIGHTED_SECONDS + layer.parameters / UPDATES_PER_SECOND
        seconds += PASSES * layer.parameters * places * batch_size / MULTIPLICATIONS_PER_SECOND
    return seconds


def places_of_all(architecture: Architecture, places: Mapping[str, int]) -> dict[str, int]:
    """Return the places of every layer: one that is not in `places` is applied where the layers are that it reads."""
    known: dict[str, int] = {}
    for layer in architecture.layers:
        known[layer.name] = places.get(layer.name, max((known[name] for name in layer.inputs), default=1))
    return known


def step_seconds(architecture: Architecture, places: Mapping[str, int], batch_size: int) -> float:
    """Return the modelled seconds of one training step; `places` are those of the layers with weights."""
    known = places_of_all(architecture, places)
    return sum(layer_seconds(layer, known[layer.name], batch_size) for layer in architecture.layers)


def mixes(layer: Layer) -> bool:
    """Return whether a layer mixes places: by a kernel above 1, recurrence, or attention."""
    kernel = layer.attributes.get("kernel_size")
    if layer.operator in WEIGHT_OPERATORS and kernel is not None:
        return max(kernel) > 1 if isinstance(kernel, tuple) else isinstance(kernel, int) and kernel > 1
    return layer.operator in RECURRENT or any(part in layer.operator for part in ATTENTION)
