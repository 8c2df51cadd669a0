"""A widened model can be deepened, also behind a block that growth put there and widening made wider."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from growth_cases import assert_same_behaviour, behaviour
from torch import nn

from espalier_core.growth.deepen import deepened
from espalier_core.types.job import Insertion
from espalier_trainer.net2net import deepen, growth_points, widen, widening_groups
from espalier_trainer.net2net.description import describe

IMAGE = torch.randn(3, 3, 6, 6, generator=torch.Generator().manual_seed(4))


def _image_model(**options: object) -> nn.Module:
    layers = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1, **options)
    return nn.Sequential(*layers, nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 4, 3))


class _Functional(nn.Module):
    """An activation that is no module: the block goes before it, and is what the activation reads."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, padding=1)
        self.head = nn.Conv2d(6, 2, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the two convolutions with a ReLU between them."""
        return self.head(torch.relu(self.conv(x)))


MODELS: dict[str, tuple[Callable[[], nn.Module], str, str]] = {
    "convolution": (_image_model, "1", "3.grown.0.conv"),
    "grouped": (lambda: _image_model(groups=2), "1", "3.grown.0.conv"),
    "activation first": (_Functional, "conv", "conv.grown.0.conv"),
    "linear": (
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(108, 6), nn.ReLU(), nn.Linear(6, 2)), "1", "2.grown.0.linear"
    ),
}  # fmt: skip
"""A model, its growth point, and the group of the block that growth inserts there."""


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("insertion", [Insertion.EXACT, Insertion.IDENTITY_BATCH_NORM])
def test_a_block_after_a_widened_block_has_its_width(name: str, insertion: Insertion) -> None:
    build, point, group = MODELS[name]
    model = build()
    once = deepen(model, point, IMAGE)
    wider = widen(once, group, 10, IMAGE, seed=0)
    before = behaviour(copy.deepcopy(wider), IMAGE)
    grown = deepen(wider, point, IMAGE, insertion)
    assert describe(grown, IMAGE, insertion) == deepened(describe(wider, IMAGE, insertion), point)
    assert grown.get_parameter(group.replace(".0.", ".1.") + ".weight").shape[0] == 10
    if insertion is Insertion.EXACT:
        assert_same_behaviour(grown, before, IMAGE, name)


@pytest.mark.parametrize("name", MODELS)
def test_growth_points_stay_when_all_groups_are_widened(name: str) -> None:
    build, point, _ = MODELS[name]
    grown = deepen(build(), point, IMAGE)
    known = [one.id for one in growth_points(grown, IMAGE)]
    for group in widening_groups(grown, IMAGE):
        grown = widen(grown, group.id, group.next_width, IMAGE, seed=1)
        assert [one.id for one in growth_points(grown, IMAGE)] == known


def test_a_depthwise_block_stays_depthwise() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 6, 1), nn.Conv2d(6, 6, 3, groups=6), nn.ReLU6(), nn.Conv2d(6, 2, 1)
    )  # fmt: skip
    wider = widen(deepen(model, "1", IMAGE), "0", 9, IMAGE, seed=0)
    grown = deepen(wider, "1", IMAGE)
    assert [grown.get_submodule(f"2.grown.{n}.conv").groups for n in (0, 1)] == [9, 9]
    assert_same_behaviour(grown, behaviour(wider, IMAGE), IMAGE, "depthwise")
