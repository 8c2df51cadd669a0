"""The description of a model in the words that all parts of Espalier share."""

from __future__ import annotations

from collections.abc import Container

from torch import nn

from espalier_api.architecture import Architecture
from espalier_api.channels import Channels
from espalier_api.job import Insertion
from espalier_trainer.net2net.deepening.trial import tried_places
from espalier_trainer.net2net.description import architecture_of
from espalier_trainer.net2net.modules import ExampleInput
from espalier_trainer.net2net.trace.tracing import trace
from espalier_trainer.net2net.widening.description import channels_of
from espalier_trainer.net2net.widening.groups import find_groups
from espalier_trainer.net2net.widening.trial import tried_groups

__all__ = ["ExampleInput", "describe"]


def describe(
    model: nn.Module,
    example_input: ExampleInput,
    insertion: Insertion = Insertion.EXACT,
    *,
    widening: bool = False,
    tried: Container[str] | None = None,
) -> Architecture:
    """Return the layers of `model` in execution order, its edges and its growth points; the model is not changed.

    With `widening` also which channels can be widened; each group is then tried on values, which takes a hundredfold
    of the time. With `tried` these groups were tried on the model before it grew: it has no others, and none is
    tried again.

    Growing for real and on the description commute:
    `describe(deepen(model, p, x, i), x, i) == describe(model, x, i).deepen(p)`, and likewise for `widen`. `insertion`
    says what the next growth would add; the layers are what is really there, however they came.

    A model whose execution depends on tensor values is described as it ran on the example, in call order, and has
    growth points only where it marks them, and nothing to widen. Raises `GrowthError` where the model cannot be run on
    the example.
    """
    network = trace(model, example_input)
    places = tried_places(model, network, example_input)
    if not widening:
        return architecture_of(network, places, insertion)
    if network.data_dependent:
        return architecture_of(network, places, insertion, Channels())
    groups = tried_groups(model, network, example_input) if tried is None else find_groups(model, network)
    return architecture_of(network, places, insertion, channels_of(model, network, groups, tried))
