"""What a training step costs by a description: a model of the time, which is the same on every machine.

A step costs a fixed time for each operation, and the arithmetic of its weights: two operations a weight, place and
example forward, four backward, and one update a weight. Times that are measured depend on the machine and its load;
decisions about growth need the ratio of two steps, which this gives without running anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from espalier_api.advice import Action
from espalier_api.architecture import Architecture

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


def step_seconds(architecture: Architecture, places: Mapping[str, int], batch_size: int) -> float:
    """Return the modelled seconds of one training step on `batch_size` examples.

    `places` says of layers with weights at how many places of an example they are applied: pixels, tokens, or 1. A
    layer that is not named there is applied where the first layer is that it reads.
    """
    known: dict[str, int] = {}
    seconds = 0.0
    for layer in architecture.layers:
        before = max((known[name] for name in layer.inputs), default=1)
        here = known[layer.name] = places.get(layer.name, before)
        seconds += OPERATION_SECONDS + PLACE_SECONDS * here * (layer.operator in RECURRENT)
        # A table of embeddings is read, not multiplied.
        if layer.parameters and layer.operator != "Embedding":
            seconds += WEIGHTED_SECONDS + layer.parameters / UPDATES_PER_SECOND
            seconds += PASSES * layer.parameters * here * batch_size / MULTIPLICATIONS_PER_SECOND
    return seconds


def slowdown(architecture: Architecture, action: Action, places: Mapping[str, int], batch_size: int) -> float:
    """Return by which share a step is slower after `action`; raises `GrowthError` where it cannot be carried out."""
    before = step_seconds(architecture, places, batch_size)
    return step_seconds(action.carried_out(architecture), places, batch_size) / before - 1.0
