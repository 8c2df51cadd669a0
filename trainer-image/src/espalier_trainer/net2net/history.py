"""What was done to a model, in order, so that it can be done again: on its constructor's result, or by another process.

    history = (Deepened(point="0"), Widened(group="0", width=32, seed=7))
    grown = replay(model, history, example_input)

Order matters: a block repeats the width that its layer has by then. The same history makes the same
model of equal weights everywhere, for a widening's choice of copies comes from its seed alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field
from torch import nn

from espalier_api.base import Record
from espalier_api.job import Insertion
from espalier_trainer.net2net.deepening.deepen import deepen
from espalier_trainer.net2net.modules import ExampleInput, copied
from espalier_trainer.net2net.widening.widen import widen


class Deepened(Record):
    """One `deepen`."""

    kind: Literal["Deepened"] = "Deepened"
    point: str
    insertion: Insertion = Insertion.EXACT

    def again(self, model: nn.Module, example_input: ExampleInput) -> nn.Module:
        """Return the grown copy; raises `GrowthError` as `deepen` does."""
        return deepen(model, self.point, example_input, self.insertion)


class Widened(Record):
    """One `widen`."""

    kind: Literal["Widened"] = "Widened"
    group: str
    width: int = Field(gt=0)
    seed: int

    def again(self, model: nn.Module, example_input: ExampleInput) -> nn.Module:
        """Return the grown copy; raises `GrowthError` as `widen` does."""
        return widen(model, self.group, self.width, example_input, seed=self.seed)


Growth = Annotated[Deepened | Widened, Field(discriminator="kind")]
"""One growth of any kind, as JSON told apart by `kind`."""


def replay(model: nn.Module, history: Iterable[Deepened | Widened], example_input: ExampleInput) -> nn.Module:
    """Return a copy of `model` grown as the history says; it computes what `model` does, which is not changed.

    The state dict of the model whose history it is loads into it strictly. Raises `GrowthError` where a growth cannot
    be done, naming the layer and the reason: then `model` is not what the history began with.
    """
    grown = copied(model)
    for growth in history:
        grown = growth.again(grown, example_input)
    return grown
