"""The jobs' models and data, by name and as entrypoints of the trainer."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Final

HIDDEN: Final = 5
"""Hidden layers of the perceptron: a growth adds one."""
PIXELS: Final = 64
CLASSES: Final = 10
ROWS: Final = 1024


@dataclass(frozen=True, slots=True)
class Model:
    """One model of the benchmark, and its data."""

    name: str
    model: dict[str, Any]
    dataset: dict[str, Any] = field(default_factory=lambda: {"entrypoint": "bench.joining.models:rows"})


def perceptron(millions: float) -> Model:
    """Return the model with about this many million parameters."""
    return Model(f"MLP {millions:g} M", {"entrypoint": "bench.joining.models:mlp", "options": {"millions": millions}})


EXAMPLE: Final = Model("digits", {"name": "digits"}, {"name": "digits"})
EXAMPLE_ROWS: Final = Model("digits", {"name": "digits"})
"""The example's model on a number of examples that four workers share evenly."""


def width(millions: float) -> int:
    """Return the width of the hidden layers."""
    # (HIDDEN - 1)·w² + (PIXELS + CLASSES + HIDDEN)·w + CLASSES parameters
    square, linear = HIDDEN - 1, PIXELS + CLASSES + HIDDEN
    return max(1, round((math.sqrt(linear**2 + 4 * square * millions * 1e6) - linear) / (2 * square)))


def mlp(millions: float) -> Any:
    """Return the perceptron; each hidden layer is a growth point."""
    from torch import nn

    from espalier_trainer.models.zoo import linear_block

    wide = width(millions)
    hidden = (linear_block(PIXELS if layer == 0 else wide, wide) for layer in range(HIDDEN))
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(wide, CLASSES))


def rows() -> tuple[Any, Any, Any]:
    """Return the digits, of the training split the first 1,024."""
    from torch import arange

    from espalier_core.types.job import DatasetSpec
    from espalier_trainer.data import load_data

    data = load_data(DatasetSpec(name="digits"))
    return (
        data.train.batch(arange(ROWS), None),
        data.validation.batch(arange(len(data.validation)), None),
        data.test.batch(arange(len(data.test)), None),
    )


rows.classes = CLASSES  # type: ignore[attr-defined]
