"""The description of a model in the words that all parts of Espalier share."""

from __future__ import annotations

from torch import nn

from espalier_api.architecture import Architecture
from espalier_api.job import Insertion
from espalier_trainer.net2net.description import architecture_of
from espalier_trainer.net2net.tracing import ExampleInput, trace
from espalier_trainer.net2net.trial import tried_places

__all__ = ["ExampleInput", "describe"]


def describe(model: nn.Module, example_input: ExampleInput, insertion: Insertion = Insertion.EXACT) -> Architecture:
    """Return the layers of `model` in execution order, its edges and its growth points; the model is not changed.

    Growing for real and on the description commute:
    `describe(deepen(model, p, x, i), x, i) == describe(model, x, i).deepen(p)`. `insertion` says what the next
    growth would add; the layers are what is really there, however they came.

    A model whose execution depends on tensor values is described as it ran on the example, in call order, and has
    growth points only where it marks them. Raises `GrowthError` where the model cannot be run on the example.
    """
    network = trace(model, example_input)
    return architecture_of(network, tried_places(model, network, example_input), insertion)
