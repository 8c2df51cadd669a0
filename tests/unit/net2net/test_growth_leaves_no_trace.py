"""Whatever happens, the model that was looked at has no hook, attribute or class more than before."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import pytest
import torch
from test_growth_errors import BROKEN, LOOKING
from torch import Tensor, nn

from espalier_trainer.net2net import GrowthError, deepen, growth_points, refused_widenings, widen, widening_groups
from espalier_trainer.net2net.description import describe

_EXAMPLE = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))


def _state(model: nn.Module) -> list[tuple[object, ...]]:
    """Return class, mode and every attribute of each module, hooks included; tensors by their identity."""
    return [
        (path, type(module), *((key, _plain(value)) for key, value in sorted(vars(module).items())))
        for path, module in model.named_modules()
    ]


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return tuple((key, id(item)) for key, item in value.items())
    return value if isinstance(value, bool | int | float | str) else id(value)


def _scripted(module: nn.Module) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return torch.jit.script(module)


class Failing(nn.Module):
    """Fails in its forward, after its first layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.activation = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """Raise."""
        self.activation(self.layer(x))
        raise KeyError("broken")


OTHERS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "grows": (lambda: nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2)), "0"),
    "fails": (lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU(), Failing()), "0"),
    "scripted within": (
        lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU(), _scripted(nn.Sequential(nn.Linear(4, 4), nn.Tanh()))),
        "0",
    ),
}
_CASES = {
    **OTHERS,
    **{name: (build, point) for name, (build, point, _) in BROKEN.items() if name != "wrapped"},
    **{name: (kind, point.removeprefix("body.")) for name, (kind, point, _) in LOOKING.items()},
}


@pytest.mark.parametrize("name", _CASES)
def test_nothing_remains_after_success_and_after_each_failure(name: str) -> None:
    build, place = _CASES[name]
    model = build()
    before = _state(model)
    for attempt in (
        partial(growth_points, model, _EXAMPLE),
        partial(deepen, model, place, _EXAMPLE),
        partial(deepen, model, "nowhere", _EXAMPLE),
        partial(widening_groups, model, _EXAMPLE),
        partial(refused_widenings, model, _EXAMPLE),
        partial(widen, model, place, 12, _EXAMPLE, seed=0),
        partial(describe, model, _EXAMPLE, operations=("Widen",)),
        partial(describe, model, torch.randn(3, 5)),
    ):
        with suppress(GrowthError):
            attempt()
        assert _state(model) == before


def test_a_scripted_part_is_named_with_the_remedy() -> None:
    model = OTHERS["scripted within"][0]()
    with pytest.raises(GrowthError) as error:
        growth_points(model, _EXAMPLE)
    assert str(error.value) == (
        "'2' is scripted, and cannot be followed; put the module that it was made from in its place, grow, and script "
        "that part again"
    )
    with pytest.raises(GrowthError, match="Recursive.* is scripted and cannot be changed; grow the module it was made"):
        growth_points(_scripted(nn.Linear(4, 4)), _EXAMPLE)
