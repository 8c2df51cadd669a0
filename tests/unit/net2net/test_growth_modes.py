"""A model may do something else in eval mode: growth is exact there, too, or refused with the reason."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from growth_cases import relative_error
from torch import Tensor, nn
from torch.nn import functional

from espalier_trainer.net2net import GrowthError, deepen, growth_points, widen, widening_groups

_EXAMPLE = torch.randn(5, 4, generator=torch.Generator().manual_seed(2))


class TwoModes(nn.Module):
    """A body, a hidden layer with an activation, and a head; what is done with them is given for each mode."""

    def __init__(self, train: Callable[..., Tensor], evaluate: Callable[..., Tensor]) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 6), nn.ReLU())
        self.hidden, self.norm = nn.Linear(6, 6), nn.BatchNorm1d(6)
        self.activation = nn.Tanh()
        self.head = nn.Linear(6, 3)
        self._train, self._evaluate = train, evaluate

    def forward(self, x: Tensor) -> Tensor:
        """Return what the mode's function makes of the module and x."""
        return (self._train if self.training else self._evaluate)(self, x)


def _classes(m: nn.Module, x: Tensor) -> Tensor:
    return m.head(m.activation(m.hidden(m.body(x))))


def _classes_by_a_function(m: nn.Module, x: Tensor) -> Tensor:
    return m.head(torch.tanh(m.hidden(m.body(x))))


def _features(m: nn.Module, x: Tensor) -> Tensor:
    return m.body(x)


def _before_the_activation(m: nn.Module, x: Tensor) -> Tensor:
    return m.hidden(m.body(x))


def _another_activation(m: nn.Module, x: Tensor) -> Tensor:
    return m.head(functional.relu(m.hidden(m.body(x))))


def _fused(m: nn.Module, x: Tensor) -> Tensor:
    return m.head(torch.tanh(functional.linear(m.body(x), m.hidden.weight, m.hidden.bias)))


CASES: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor], list[str]]] = {
    "the same": (_classes, _classes, ["body.0", "hidden"]),
    "features of an earlier layer": (_classes, _features, ["body.0", "hidden"]),
    "features before the activation": (_classes, _before_the_activation, ["body.0"]),
    "features before a function": (_classes_by_a_function, _before_the_activation, ["body.0"]),
    "another activation": (_classes_by_a_function, _another_activation, ["body.0"]),
    "fused": (_classes, _fused, ["body.0"]),
    "fused functions": (_classes_by_a_function, _fused, ["body.0"]),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_offered_is_exact_in_both_modes(name: str) -> None:
    train, evaluate, wanted = CASES[name]
    model = TwoModes(train, evaluate)
    assert [point.id for point in growth_points(model, _EXAMPLE)] == wanted
    for point in wanted:
        grown = deepen(model, point, _EXAMPLE)
        for training in (True, False):
            result = copy.deepcopy(grown).train(training)(_EXAMPLE)
            assert relative_error(result, copy.deepcopy(model).train(training)(_EXAMPLE)) <= 1e-6
    for group in widening_groups(model, _EXAMPLE):
        wider = widen(model, group.id, 2 * group.width, _EXAMPLE, seed=0)
        for training in (True, False):
            result = copy.deepcopy(wider).train(training)(_EXAMPLE)
            assert relative_error(result, copy.deepcopy(model).train(training)(_EXAMPLE)) <= 1e-6
    if "hidden" not in wanted:
        with pytest.raises(
            GrowthError, match=r"'hidden' cannot be deepened: in eval mode, the model executes something"
        ):
            deepen(model, "hidden", _EXAMPLE)
