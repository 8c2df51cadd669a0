"""No layer is added where it would change what the forward counts, or could not learn; nothing is drawn to find out."""

from __future__ import annotations

import copy
import inspect
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from residual_nets import ROWS, Net, Unit, in_turn
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from espalier_trainer.net2net import (
    GrowthError,
    add_block,
    block_points,
    deepen,
    growth_points,
    refused_blocks,
    refused_deepenings,
)
from espalier_trainer.net2net.description import describe


class Counting(nn.Module):
    """A block, a hidden layer and a head, whose result goes through what is given."""

    def __init__(self, term: Callable[[Counting, Tensor], Tensor]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Unit()])
        self.hidden, self.act, self.head = nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)
        self.term, self.calls = term, 0

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.term(self, self.head(self.act(self.hidden(x))))


def _by_scalars(model: Counting, x: Tensor) -> Tensor:
    return x / sum(parameter.numel() for parameter in model.parameters())


def _by_tensors(model: Counting, x: Tensor) -> Tensor:
    return x / len(list(model.parameters()))


def _by_blocks(model: Counting, x: Tensor) -> Tensor:
    return x / len(model.blocks)


def _by_blocks_in_eval_mode(model: Counting, x: Tensor) -> Tensor:
    return x if model.training else x * len(model.blocks)


def _with_a_penalty(model: Counting, x: Tensor) -> Tensor:
    return x + 0.01 * sum(parameter.square().sum() for parameter in model.parameters())


def _by_calls(model: Counting, x: Tensor) -> Tensor:
    model.calls += 1
    return x * (1 + 0.1 * model.calls)


WIDE = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(1))
DEEPER, LONGER = ["blocks.0.up", "hidden"], ["blocks.0"]
COUNTING: dict[str, tuple[Callable[[Counting, Tensor], Tensor], list[str], list[str]]] = {
    "scalars": (_by_scalars, [], []),
    "tensors": (_by_tensors, [], []),
    "blocks": (_by_blocks, DEEPER, []),
    "blocks in eval mode": (_by_blocks_in_eval_mode, DEEPER, []),
    "a penalty": (_with_a_penalty, [], []),
    "its own calls": (_by_calls, DEEPER, LONGER),
}


@pytest.mark.sweep("forwards that count")
@pytest.mark.parametrize("name", COUNTING)
def test_a_forward_that_counts_is_refused_with_the_line_that_counts(name: str) -> None:
    term, layers, runs = COUNTING[name]
    torch.manual_seed(0)
    model = Counting(term)
    assert [point.id for point in growth_points(model, WIDE)] == layers
    assert [point.id for point in block_points(model, WIDE)] == runs
    grown = [deepen(model, point, WIDE) for point in layers] + [add_block(model, point, WIDE) for point in runs]
    model.calls = 0
    for each in grown:
        each.calls = 0
        for training in (False, True):
            wanted = copy.deepcopy(model).train(training)(WIDE)
            torch.testing.assert_close(copy.deepcopy(each).train(training)(WIDE), wanted, rtol=1e-4, atol=1e-5)
    refused = [one for layer, one in refused_deepenings(model, WIDE).items() if layer in DEEPER]
    refused += refused_blocks(model, WIDE)
    assert len(refused) == len(DEEPER) + len(LONGER) - len(layers) - len(runs)
    last = inspect.getsourcelines(term)[1] + len(inspect.getsourcelines(term)[0]) - 1
    assert {(one.file, one.line) for one in refused} <= {(__file__, last)}
    if not layers:
        with pytest.raises(GrowthError, match=rf"'hidden' cannot be deepened: {__file__}:{last}: "):
            deepen(model, "hidden", WIDE)
    if not runs:
        with pytest.raises(GrowthError, match=rf"^{__file__}:{last}: "):
            add_block(model, "blocks.0", WIDE)


class Parts(nn.Module):
    """A trunk that is computed in a way that is given, and a head with a hidden layer."""

    def __init__(self, way: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.trunk, self.way = Net(nn.ModuleList([Unit(), Unit()]), in_turn), way
        self.first, self.act, self.last = nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.act(self.first(self.way(self.trunk, x))))


@torch.no_grad()
def _marked(trunk: nn.Module, x: Tensor) -> Tensor:
    return trunk(x)


def _within(trunk: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        result: Tensor = trunk(x)
    return result


def _detached(trunk: nn.Module, x: Tensor) -> Tensor:
    return trunk(x).detach()


def _unused(trunk: nn.Module, x: Tensor) -> Tensor:
    trunk(x)
    return x[..., :3]


def _plain(trunk: nn.Module, x: Tensor) -> Tensor:
    return trunk(x)


def _masked(trunk: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        kept = torch.ones_like(x[..., :1])
    return trunk(x) * kept + trunk.head.weight.detach().sum()


def _again(trunk: nn.Module, x: Tensor) -> Tensor:
    return checkpoint(trunk, x.clone().requires_grad_(torch.is_grad_enabled()), use_reentrant=True)


WAYS: dict[str, tuple[Callable[[nn.Module, Tensor], Tensor], bool, int]] = {
    "decorated": (_marked, False, 0),
    "within": (_within, False, 1),
    "detached": (_detached, False, 1),
    "unused": (_unused, False, 0),
    "frozen": (_plain, True, 0),
    "something else": (_masked, True, 0),
    "recomputed": (_again, True, 0),
}


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad:UserWarning")  # where torch recomputes
@pytest.mark.sweep("ways that gradients take")
@pytest.mark.parametrize("name", WAYS)
def test_what_would_get_no_gradient_is_refused(name: str) -> None:
    way, learns, line = WAYS[name]
    model = Parts(way)
    frozen = name == "frozen"
    model.trunk.requires_grad_(not frozen)
    points = [point.id for point in growth_points(model, ROWS)]
    assert points == [*(["trunk.stem", "trunk.blocks.0.up", "trunk.blocks.1.up"] if learns else []), "first"]
    assert [run.id for run in block_points(model, ROWS)] == (["trunk.blocks.0"] if learns and not frozen else [])
    for point in points:
        grown = deepen(model, point, ROWS).train()
        grown(ROWS).square().sum().backward()
        assert all(one.grad is not None for name, one in grown.named_parameters() if ".grown." in name)
    if not learns:
        refusal = refused_deepenings(model, ROWS)["trunk.blocks.0.up"]
        assert refusal.reason.startswith("no gradient reaches the output of 'trunk.blocks.0.act'")
        if line:
            assert (refusal.file, refusal.line) == (__file__, inspect.getsourcelines(way)[1] + line)
        assert "would never learn" in refused_blocks(model, ROWS)[0].reason


class Drawing(nn.Module):
    """Leaves blocks out as a generator of its own says."""

    def __init__(self, own: Any, draw: Callable[[Any], float]) -> None:
        super().__init__()
        self.blocks, self.own, self.draw = nn.ModuleList([Unit(), Unit()]), [own], draw

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            if not self.training or self.draw(self.own[0]) > 0.5:
                x = block(x)
        return x


OWN: dict[str, tuple[Callable[[], Any], Callable[[Any], float]]] = {
    "torch": (lambda: torch.Generator().manual_seed(3), lambda own: torch.rand((), generator=own, device="cpu")),
    "python": (lambda: random.Random(3), lambda own: own.random()),
    "numpy": (lambda: np.random.default_rng(3), lambda own: own.random()),
    "old numpy": (lambda: np.random.RandomState(3), lambda own: own.rand()),
}


@pytest.mark.sweep("generators that a model holds")
@pytest.mark.parametrize("name", OWN)
def test_a_generator_of_the_models_own_is_left_as_it_was(name: str) -> None:
    make, draw = OWN[name]
    torch.manual_seed(0)
    model = Drawing(make(), draw)
    described = describe(model, WIDE)
    assert [point.id for point in described.growth_points] == ["blocks.0.up", "blocks.1.up"]
    grown = deepen(model, "blocks.0.up", WIDE)
    untouched = make()
    drawn = [float(draw(untouched)) for _ in range(9)]
    assert [float(draw(model.own[0])) for _ in range(9)] == drawn
    assert [float(draw(grown.own[0])) for _ in range(9)] == drawn
    assert describe(model, WIDE) == described
