"""A model grown in any way comes back from its constructor, its history as JSON, and its state dict."""

from __future__ import annotations

import copy

import pytest
import torch
from growth_cases import behaviour, relative_error
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter
from torch import nn

import sweeps
from espalier_trainer.net2net import (
    Deepened,
    Growth,
    GrowthError,
    Widened,
    growth_points,
    replay,
    widening_groups,
)
from espalier_trainer.net2net.description import describe

IMAGE = torch.randn(3, 3, 6, 6, generator=torch.Generator().manual_seed(4))
HISTORY: TypeAdapter[tuple[Growth, ...]] = TypeAdapter(tuple[Growth, ...])


def _model(width: int = 4) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, width, 3), nn.BatchNorm2d(width), nn.ReLU(),
        nn.Conv2d(width, 6, 2, groups=2), nn.SiLU(), nn.Flatten(), nn.Linear(54, 2),
    )  # fmt: skip


@st.composite
def histories(draw: st.DrawFn) -> tuple[nn.Module, tuple[Growth, ...]]:
    """A grown model with its history, each growth one that is possible there."""
    model, history = _model(), ()
    for kind in draw(st.lists(st.sampled_from(["deepen", "widen"]), max_size=5)):
        growth: Growth
        if kind == "deepen":
            growth = Deepened(point=draw(st.sampled_from([point.id for point in growth_points(model, IMAGE)])))
        else:
            group = draw(st.sampled_from(widening_groups(model, IMAGE)))
            growth = Widened(group=group.id, width=group.next_width, seed=draw(st.integers(0, 9)))
        model = growth.again(model, IMAGE)
        history = (*history, growth)
    return model, history


@settings(max_examples=sweeps.examples(15), deadline=None)
@given(histories())
def test_any_growth_in_any_order_comes_back(grown: tuple[nn.Module, tuple[Growth, ...]]) -> None:
    model, history = grown
    read = HISTORY.validate_json(HISTORY.dump_json(history))
    assert read == history
    start = _model()
    again = replay(start, read, IMAGE)
    wanted = behaviour(copy.deepcopy(start), IMAGE).outputs
    for output, other in zip(behaviour(copy.deepcopy(again), IMAGE).outputs, wanted, strict=True):
        assert relative_error(output, other) <= 1e-6
    again.load_state_dict(model.state_dict(), strict=True)
    assert describe(again, IMAGE) == describe(model, IMAGE)
    assert torch.equal(again(IMAGE), model(IMAGE))


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
