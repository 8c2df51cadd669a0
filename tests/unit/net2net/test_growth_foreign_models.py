"""Models that nobody named: each grows exactly at every place that is offered, or is refused; never a crash."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from residual_nets import ROWS, Net, Unit, in_turn
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations, weight_norm
from torch.utils.checkpoint import checkpoint

from espalier_trainer.net2net import (
    ExampleInput,
    GrowthError,
    add_block,
    block_points,
    deepen,
    growth_points,
    refused_blocks,
    refused_deepenings,
    refused_widenings,
    widen,
    widening_groups,
)
from espalier_trainer.net2net.description import describe
from espalier_trainer.net2net.modules import as_arguments, copied, tensors_in
from espalier_trainer.net2net.randomness import seed_everything


class Named(nn.Module):
    """Takes keyword arguments only, and returns a dictionary, a tuple and a number."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net(nn.ModuleList([Unit(), Unit()]), in_turn)

    def forward(self, *, values: Tensor, scale: float = 1.0) -> dict[str, Any]:
        """Return logits and more."""
        found = self.net(values) * scale
        return {"logits": found, "more": (found.softmax(-1), None), "count": 3}


class Adapted(nn.Module):
    """A frozen layer with an adapter of low rank."""

    def __init__(self, given: int, made: int) -> None:
        super().__init__()
        self.base = nn.Linear(given, made).requires_grad_(False)
        self.down, self.up = nn.Linear(given, 2, bias=False), nn.Linear(2, made, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


class Remembering(nn.Module):
    """A buffer takes the size of what it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(0))
        self.first, self.act, self.last = nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        found = self.act(self.first(x))
        if self.seen.numel() != found.numel():
            self.seen = torch.zeros_like(found)
        self.seen = 0.5 * self.seen + found.detach()
        return self.last(found)


class Tied(nn.Module):
    """Reads and writes with one matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.units, self.head = nn.Embedding(20, 8), nn.Sequential(Unit()), nn.Linear(8, 20, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.units(self.embedding(words)))


def _twice(blocks: Any, x: Tensor) -> Tensor:
    return in_turn(blocks, in_turn(blocks, x))


def _checkpointed(blocks: Any, x: Tensor) -> Tensor:
    for block in blocks:
        x = checkpoint(block, x, use_reentrant=False)
    return x


def _by_number(blocks: Any, x: Tensor) -> Tensor:
    return blocks[1](blocks[0](x))


def _units(**options: Any) -> nn.ModuleList:
    return nn.ModuleList([Unit(**options), Unit(**options)])


def _one_thrice() -> nn.ModuleList:
    unit = Unit()
    return nn.ModuleList([unit, unit, unit])


def _compiled_within() -> nn.Module:
    blocks = _units()
    blocks[0].compile(backend="eager")
    return Net(blocks, in_turn)


def _hooked() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    model[1].register_forward_hook(lambda _module, _args, result: 2 * result)
    return model


FOREIGN_MODELS: dict[str, tuple[Callable[[], nn.Module], ExampleInput, int]] = {
    "tied": (Tied, torch.arange(12).reshape(2, 6), 1),
    "called twice": (lambda: Net(_units(), _twice), ROWS, 1),
    "one module thrice": (lambda: Net(_one_thrice(), in_turn), ROWS, 0),
    "keywords and dictionaries": (Named, {"values": ROWS, "scale": 0.5}, 1),
    "buffer resized": (Remembering, ROWS, 0),
    "nested": (lambda: Net(nn.ModuleDict({"a": nn.Sequential(Unit(), Unit())}), lambda d, x: d["a"](x)), ROWS, 1),
    "weight norm": (lambda: Net(_units(), in_turn, parametrizations.weight_norm(nn.Linear(4, 8))), ROWS, 1),
    "old weight norm": (lambda: Net(_units(), in_turn, weight_norm(nn.Linear(4, 8))), ROWS, 1),
    "adapters": (lambda: Net(_units(layer=Adapted), in_turn), ROWS, 0),
    "checkpointing": (lambda: Net(_units(), _checkpointed), ROWS, 1),
    "by number": (lambda: Net(_units(), _by_number), ROWS, 0),
    "compiled within": (_compiled_within, ROWS, 1),
    "hook": (_hooked, ROWS, 0),
}


@dataclass
class Found:
    """What a model of somebody's returns; torch knows nothing of it."""

    scores: Tensor
    hidden: Any


class Returning(nn.Module):
    """Returns what it hides, too: no channels of it can be added."""

    def __init__(self, returned: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self._returned = returned

    def forward(self, x: Tensor) -> Any:
        """Return (..., 3) and (..., 8) together."""
        hidden = functional.relu(self.first(x))
        return self._returned(self.head(functional.relu(self.second(hidden))), hidden)


FOREIGN_MODELS["dataclass"] = (lambda: Returning(lambda scores, hidden: Found(scores, [hidden])), ROWS, 0)


def _outputs(model: nn.Module, example: ExampleInput, *, training: bool) -> list[Tensor]:
    args, kwargs = as_arguments(example)
    result = copied(model).train(training)(*args, **kwargs)
    found = tensors_in(result)
    assert found, "nothing would be compared"
    return found


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")
# As an error it would leave torch._dynamo on: all later tests of the process would run in its frames.
@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace:UserWarning")
@pytest.mark.sweep("models that nobody named")
@pytest.mark.parametrize("name", FOREIGN_MODELS)
def test_a_stranger_grows_exactly_or_is_refused_with_a_reason(name: str) -> None:
    torch.manual_seed(0)
    build, example, runs = FOREIGN_MODELS[name]
    model = build()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    grown = [deepen(model, point.id, example) for point in growth_points(model, example)]
    blocks = block_points(model, example)
    assert len(blocks) == runs
    grown += [add_block(model, point.id, example) for point in blocks]
    for group in widening_groups(model, example):
        grown.append(widen(model, group, group.next_width, example, seed=1))
    for each in grown:
        for training in (False, True):
            pairs = zip(
                _outputs(model, example, training=training), _outputs(each, example, training=training), strict=True
            )
            for one, other in pairs:
                torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    refused = [*refused_deepenings(model, example).values(), *refused_widenings(model, example).values()]
    assert all(one.reason and one.remedy for one in (*refused, *refused_blocks(model, example)))
    after = model.state_dict()
    assert all(torch.equal(after[key], value) for key, value in before.items())


def test_channels_that_a_dataclass_shows_are_not_widened() -> None:
    model = Returning(Found)
    assert [group.id for group in widening_groups(model, ROWS)] == ["second"]
    assert refused_widenings(model, ROWS)["first"].reason == "'relu' is an output of the model"
    assert len(describe(model, ROWS).outputs) == 2


def test_a_model_whose_outputs_are_not_found_is_refused_with_what_to_return() -> None:
    """Otherwise nothing of it would be compared, and all would be taken for exact."""
    model = Returning(lambda scores, hidden: SimpleNamespace(scores=scores, hidden=hidden))
    with pytest.raises(GrowthError, match="in which no tensor is found"):
        widening_groups(model, ROWS)
    with pytest.raises(GrowthError, match="return a tensor, or a tuple, list, dictionary or dataclass"):
        describe(model, ROWS)


def test_a_compiled_model_is_refused_with_what_to_grow() -> None:
    model = torch.compile(Net(_units(), in_turn), backend="eager")
    with pytest.raises(GrowthError, match="grow its `._orig_mod` and wrap the result again"):
        growth_points(model, ROWS)


class Skipping(nn.Module):
    """Leaves blocks out by chance (stochastic depth), as Python decides."""

    def __init__(self, draw: Callable[[], float | Tensor]) -> None:
        super().__init__()
        self.blocks, self.draw = _units(), draw

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            if not self.training or self.draw() > 0.5:
                x = block(x)
        return x


DRAWS: dict[str, Callable[[], float | Tensor]] = {
    "python": random.random,
    "torch": lambda: torch.rand(()),
    "numpy": lambda: float(np.random.rand()),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_a_model_that_skips_blocks_by_chance_is_always_described_alike(draw: Callable[[], float | Tensor]) -> None:
    """Otherwise a run that resumes, or a worker that joins, could not rebuild what has grown."""
    torch.manual_seed(0)
    model, example = Skipping(draw), torch.randn(2, 5, 8)
    described = describe(model, example)
    assert [point.id for point in described.growth_points] == ["blocks.0.up", "blocks.1.up"]
    seed_everything(4)
    before = random.getstate(), torch.get_rng_state(), np.random.get_state()[1].tolist()
    assert describe(model, example) == described
    assert random.getstate() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])
    assert np.random.get_state()[1].tolist() == before[2]


def test_frozen_projections_are_named() -> None:
    (refusal,) = refused_blocks(FOREIGN_MODELS["adapters"][0](), ROWS)
    assert "is frozen there" in refusal.reason
    assert "merge its adapters" in refusal.remedy


class Stacked(Unit):
    """Adds by a sum over a stack, which is no addition that the trace could follow."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([x, self.down(self.act(self.up(self.norm(x))))]).sum(0)


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (None, "is not a sum of its input"),
        (("down.weight", "down.bias"), ""),
        (("up.weight",), "it still changes its input"),
        (("out.weight",), "'out.weight', which is not one of its parameters"),
    ],
)
def test_a_block_may_name_what_closes_it(names: tuple[str, ...] | None, reason: str) -> None:
    torch.manual_seed(0)
    kind = type("Marked", (Stacked,), {} if names is None else {"closed_by": names})
    model = Net(nn.ModuleDict({"first": kind(), "second": kind()}), lambda blocks, x: in_turn(blocks.values(), x))
    points = [point.id for point in block_points(model, ROWS)]
    assert points == ([] if reason else ["blocks.first"])
    if names is not None and reason:
        with pytest.raises(GrowthError, match=reason):
            add_block(model, "blocks.first", ROWS)
    elif not reason:
        grown = add_block(model, "blocks.first", ROWS)
        assert list(dict(grown.blocks.named_children())) == ["first", "second", "second_added_0"]
        assert torch.equal(grown(ROWS), model(ROWS))
