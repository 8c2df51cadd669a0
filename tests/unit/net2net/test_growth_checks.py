"""A forward that reads values to check or to log them grows; one that decides by them is refused with file and line."""

from __future__ import annotations

import inspect
import logging
import math
import warnings
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from residual_nets import Unit
from torch import Tensor, nn

from espalier_trainer.net2net import (
    DeepenBlock,
    GrowthError,
    add_block,
    block_points,
    deepen,
    growth_points,
    widen,
    widening_groups,
)
from espalier_trainer.net2net.description import describe

LOG: list[Any] = []


class Net(nn.Module):
    """A residual block in a list, a layer with an activation before it, and what looks at the values in between."""

    def __init__(self, look: Callable[[Net, Tensor], Tensor | None]) -> None:
        super().__init__()
        self.look = look
        self.seen: list[Any] = []
        self.first, self.act = nn.Linear(4, 8), nn.ReLU()
        self.blocks = nn.ModuleList([Unit(), Unit()])
        self.last = nn.Linear(8, 2)
        self.other = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.first(x))
        looked = self.look(self, x)
        x = x if looked is None else looked
        for block in self.blocks:
            x = block(x)
        return cast(Tensor, self.last(x))


def _finite(_net: Net, x: Tensor) -> None:
    assert torch.isfinite(x).all()


def _raises(_net: Net, x: Tensor) -> None:
    if torch.isnan(x).any():
        raise ValueError(f"not a number, the mean is {x.mean()}")


def _counts(_net: Net, x: Tensor) -> None:
    if x.isnan().sum() > 0 or x.numel() == 0:
        _fail("not a number")


def _fail(text: str) -> None:
    raise RuntimeError(text)


def _torch_assert(_net: Net, x: Tensor) -> None:
    torch._assert((x >= 0).all(), "negative")


def _warns(_net: Net, x: Tensor) -> None:
    if x.abs().max() > 1e4:
        warnings.warn(f"large: {x.abs().max():.1f}", stacklevel=2)


def _logs(net: Net, x: Tensor) -> None:
    net.seen.append(x.mean().item())
    LOG.append({"norm": float(x.norm()), "rows": x.tolist(), "all": x.detach().numpy().sum()})
    logging.getLogger("net").debug("%.3f", math.log(x.std().item() + 1))


def _prints(_net: Net, x: Tensor) -> None:
    print(x.mean(), f"{x.mean():.2f}", x)


def _averages(net: Net, x: Tensor) -> None:
    if x.mean().item() > 1e4 and not net.seen:
        net.seen.append("large")


def _catches(net: Net, x: Tensor) -> None:
    try:
        _finite(net, x)
    except AssertionError:
        net.seen.append("not finite")


HARMLESS = [_finite, _raises, _counts, _torch_assert, _warns, _logs, _prints, _averages, _catches]


@pytest.mark.parametrize("look", HARMLESS, ids=lambda look: look.__name__)
def test_a_check_or_a_log_keeps_nothing_from_growing(look: Callable[[Net, Tensor], None]) -> None:
    torch.manual_seed(0)
    model, example = Net(look), torch.randn(3, 4)
    plain = Net(lambda _net, _x: None)
    logged = len(model.seen)
    assert [point.id for point in growth_points(model, example)] == [
        point.id for point in growth_points(plain, example)
    ]
    assert [group.id for group in widening_groups(model, example)] == [
        group.id for group in widening_groups(plain, example)
    ]
    assert [point.id for point in block_points(model, example)] == ["blocks.0"]
    assert [layer.name for layer in describe(model, example, operations=["Widen"]).layers if layer.parameters] == [
        layer.name for layer in describe(plain, example).layers if layer.parameters
    ]
    assert len(model.seen) == logged
    wanted = model(example)
    for grown in (deepen(model, "first", example), add_block(model, "blocks.0", example)):
        assert torch.equal(grown(example), wanted)
    wider = widen(model, "first", 16, example, seed=0)
    torch.testing.assert_close(wider(example), wanted)


def _branches(net: Net, x: Tensor) -> Tensor | None:
    return cast(Tensor, net.other(x)) if x.sum() > 1e9 else None


def _routes(net: Net, x: Tensor) -> Tensor:
    chosen = x.mean(1) > 0.2
    y = x
    if chosen.any():
        y = x.clone()
        y[chosen] = net.other(x[chosen])
    return y


def _ends_early(net: Net, x: Tensor) -> Tensor:
    while x.norm() > 1e-3:
        x = net.other(x) * 1e-6
    return x


def _scales(_net: Net, x: Tensor) -> Tensor:
    return x / (1 + x.max().item())


def _thresholds(net: Net, x: Tensor) -> Tensor | None:
    share = x.mean().item() * 100
    if 5000.3 < share < 5000.4:
        return cast(Tensor, net.other(x))
    return None


def _repeats(net: Net, x: Tensor) -> Tensor:
    for _ in range(int(x.max())):
        x = net.other(x)
    return x


def _equal(net: Net, x: Tensor) -> Tensor | None:
    return cast(Tensor, net.other(x)) if torch.equal(x, -x) else None


DECIDING = [_branches, _routes, _ends_early, _scales, _thresholds, _repeats, _equal]


@pytest.mark.parametrize("look", DECIDING, ids=lambda look: look.__name__)
def test_what_decides_by_values_is_refused_with_its_line(look: Callable[[Net, Tensor], Tensor]) -> None:
    torch.manual_seed(0)
    model, example = Net(look), torch.randn(3, 4)
    lines, first = inspect.getsourcelines(look)
    for ask in (growth_points, widening_groups):
        with pytest.raises(GrowthError, match="branches on a tensor's values") as error:
            ask(model, example)
        line = int(str(error.value).partition(f"{__file__}:")[2].partition(")")[0])
        assert first < line < first + len(lines)


def test_other_answers_are_tried_on_a_copy_without_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    class Writes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.act = nn.Linear(4, 4), nn.ReLU()

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                self.layer.weight.clamp_(-0.1, 0.1)
            x = self.act(self.layer(x))
            if not torch.isfinite(x).all():
                print("not finite")
                breakpoint()
            return x

    model = Writes()
    before = model.layer.weight.detach().clone()
    assert [point.id for point in growth_points(model, torch.randn(3, 4))] == ["layer"]
    assert torch.equal(model.layer.weight, before)
    assert capsys.readouterr().out == ""


def test_a_check_in_train_mode_alone_is_followed_in_train_mode() -> None:
    class Trains(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.norm, self.act = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU()

        def forward(self, x: Tensor) -> Tensor:
            x = self.act(self.norm(self.layer(x)))
            if self.training:
                assert x.max() < 1e6
            return x

    model, example = Trains(), torch.randn(5, 4)
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    grown = deepen(model, "layer", example)
    assert all(torch.equal(buffer, buffers[name]) for name, buffer in model.named_buffers())
    assert torch.equal(grown.eval()(example), model.eval()(example))


def test_marks_grow_where_values_decide_beside_a_check() -> None:
    def both(net: Net, x: Tensor) -> Tensor:
        _finite(net, x)
        return _routes(net, x)

    model, example = Net(both), torch.randn(3, 4)
    model.last = nn.Sequential(DeepenBlock(nn.Linear(8, 8), nn.ReLU()), nn.Linear(8, 2))
    grown = deepen(model, "last.0", example)
    assert torch.equal(grown(example), model(example))
