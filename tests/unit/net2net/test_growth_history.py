"""A history is followed to the same model, or refused where the model is another."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from espalier_trainer.net2net import Deepened, GrowthError, Widened, replay

IMAGE = torch.randn(3, 3, 6, 6, generator=torch.Generator().manual_seed(4))


def _model(width: int = 4) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, width, 3), nn.BatchNorm2d(width), nn.ReLU(),
        nn.Conv2d(width, 6, 2, groups=2), nn.SiLU(), nn.Flatten(), nn.Linear(54, 2),
    )  # fmt: skip


def test_the_same_weights_become_the_same_model() -> None:
    """Every process of a job may widen by itself: parameters stay bit-equal."""
    model = _model()
    history = (Widened(group="0", width=12, seed=3), Deepened(point="0"))
    one, other = (replay(copy.deepcopy(model), history, IMAGE).state_dict() for _ in range(2))
    assert all(torch.equal(value, other[key]) for key, value in one.items())


def test_another_model_is_refused() -> None:
    with pytest.raises(GrowthError, match="'0' has 20 channels and cannot be widened to 12"):
        replay(_model(20), [Widened(group="0", width=12, seed=3)], IMAGE)


def test_the_model_is_not_changed() -> None:
    model = _model()
    copied = replay(model, (), IMAGE)
    assert copied is not model
    assert all(one is not other for one, other in zip(model.parameters(), copied.parameters(), strict=True))
