"""Published recipes of growth: what they make of a checkpoint, of moments and rates, and of the bottleneck."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from bench.cases.gpt import gpt
from bench.flagship.gradients import observed, ratios
from bench.flagship.recipes import MADE, Order, arranged, bottleneck, bottlenecks
from bench.flagship.subject import RECIPES, Arm, Cell
from bench.flagship.training import Bench
from espalier_core.types.job import Insertion
from espalier_trainer.checkpoints.document import Checkpoint
from espalier_trainer.models.gpt import GPT
from espalier_trainer.net2net import add_block
from espalier_trainer.net2net.optimizer import grow_optimizer
from espalier_trainer.training.network import OPTIMIZER_PREFIX

TOKENS = torch.arange(16).view(2, 8)
CELL = Cell(budget=0.6, arm=Arm.DRAWN, moment=0.2, rate=0.004, seed=0)


def net(blocks: int) -> GPT:
    return GPT(vocabulary=16, context=8, width=8, heads=2, blocks=blocks, dropout=0.0)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(gpt(), (0.2,), tmp_path_factory.mktemp("trunks"), MADE)


@pytest.fixture(scope="module")
def trunk(bench: Bench) -> Checkpoint:
    return bench.trunk(CELL, 0.2)


@pytest.mark.parametrize("arm", RECIPES)
def test_every_recipe_ends_with_four_blocks_and_its_gradients(bench: Bench, arm: Arm) -> None:
    run = bench.run(CELL.model_copy(update={"arm": arm}))
    assert run.blocks == 4
    assert len(run.gradients) == (0 if arm is Arm.FROM_ZERO else 3), "without old blocks there is nothing to compare"


@pytest.mark.parametrize("order", [[(0, False), (0, True), (0, True)], [(0, True), (0, False), (0, True)]])
def test_closed_copies_change_nothing_wherever_they_are(bench: Bench, trunk: Checkpoint, order: Order) -> None:
    small, large = (GPT(128, 64, 64, 2, blocks, 0.0) for blocks in (1, len(order)))
    small.load_state_dict(trunk.model)
    made = arranged(trunk, large, order)
    large.load_state_dict(made.model)
    assert torch.equal(small(TOKENS), large(TOKENS))
    learned = [place for place, origin in enumerate(order) if origin == (0, False)]
    named = {name.removeprefix(OPTIMIZER_PREFIX).partition("|")[0] for name in made.under("optimizer.blocks.")}
    assert {int(name.split(".")[0]) for name in named} == set(learned), "old blocks alone keep their moments"
    assert {name for group in made.state.optimizer_groups for name in group["params"]} == {
        name for name, _ in large.named_parameters()
    }


def test_a_bottleneck_is_the_part_of_a_wish_that_features_do_not_give() -> None:
    torch.manual_seed(0)
    features = torch.randn(200, 5)
    reached, beyond = features @ torch.randn(5, 3), torch.linalg.qr(torch.cat([features, torch.randn(200, 3)], 1))[0]
    assert bottleneck(features, reached) == pytest.approx(0, abs=1e-6)
    assert bottleneck(features, reached + beyond[:, 5:]) == pytest.approx(3 / 200, rel=1e-3)


def test_there_is_a_bottleneck_at_each_place(bench: Bench, trunk: Checkpoint) -> None:
    found = bottlenecks(bench, CELL, 1, trunk)
    assert len(found) == 2
    assert min(found) > 0


def test_steps_of_new_blocks_warm_up_and_their_gradients_are_measured() -> None:
    torch.manual_seed(0)
    model: nn.Module = net(1)
    optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    used, seen = 0.0, list[tuple[float, float, float]]()

    def stepped(block: str) -> bool:
        before = [one.detach().clone() for one in model.get_submodule(block).parameters()]
        optimizer.zero_grad()
        model(TOKENS).square().mean().backward()
        optimizer.step()
        return not all(map(torch.equal, before, model.get_submodule(block).parameters()))

    with observed(lambda: model, lambda: used, seen, "blocks.0.", warmup=0.1):
        assert all(stepped("blocks.0") for _ in range(3)), "no block is new"
        longer = add_block(model, "blocks.0", TOKENS, Insertion.SCALED)
        optimizer, model, used = grow_optimizer(optimizer, model, longer), longer, 0.2
        assert not stepped("blocks.1"), "a step of length 0"
        assert stepped("blocks.0")
        used = 0.25
        assert stepped("blocks.1")
    ((at, new, old),) = seen  # of a step in four, those with new blocks
    assert (at, ratios(seen)) == (0.2, pytest.approx(3 * [(new / old) ** 0.5]))
