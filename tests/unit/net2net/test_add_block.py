"""A whole residual block more: the model computes the same, and the description grows as the model does."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from block_cases import CASES, GPT, Case, MixerBlock, PostNorm, encoder, outputs, resnet, tokens, vectors
from growth_cases import relative_error
from residual_nets import ROWS, Net, Unit, Written, in_turn
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from espalier_core.growth.architecture import GrowthError
from espalier_core.growth.block import block_added
from espalier_core.growth.deepen import deepened
from espalier_trainer.models.gpt import gpt
from espalier_trainer.net2net import (
    BlockAdded,
    Deepened,
    Insertion,
    add_block,
    block_points,
    deepen,
    grow_optimizer,
    rebuild,
    refused_blocks,
    replay,
)
from espalier_trainer.net2net.description import describe
from espalier_trainer.net2net.modules import remembering
from espalier_trainer.training.method import recomputed
from espalier_trainer.training.network import Network

ALL = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
OPERATIONS = ["AddBlock"]


def _without_dropout(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        elif isinstance(module, nn.MultiheadAttention):
            module.dropout = 0.0
    return model


@ALL
def test_outputs_stay_bit_for_bit_in_both_modes_and_the_new_block_learns(case: Case) -> None:
    model, example = _without_dropout(case.build()), case.example()
    before = copy.deepcopy(model.state_dict())
    grown = add_block(model, case.run, example)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(torch.equal(grown.state_dict()[name], value) for name, value in before.items())
    for training in (False, True):
        wanted = outputs(copy.deepcopy(model), example, training=training)
        assert torch.equal(outputs(copy.deepcopy(grown), example, training=training), wanted), training
    for trained in (model, grown):
        trained.train()
        trained(example).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert relative_error(grown.get_parameter(name).grad, parameter.grad) < 1e-6, name
    new = [p for name, p in grown.named_parameters() if name not in before]
    assert any(p.grad.abs().max() > 0 for p in new)
    with torch.no_grad():
        for parameter in new:
            parameter -= 0.1 * parameter.grad
    assert not torch.equal(outputs(grown, example, training=False), outputs(model, example, training=False))


@pytest.mark.sweep("descriptions that grow by a block")
@ALL
def test_growing_the_description_and_growing_the_model_commute_and_ids_stay(case: Case) -> None:
    model, example = case.build(), case.example()
    start = described = describe(model, example, operations=OPERATIONS)
    grown = model
    for _ in range(2):
        grown, described = add_block(grown, case.run, example), block_added(described, case.run)
        with remembering(grown, example):
            # Without `before`, it is measured again how far points may look; a stage of more blocks looks further.
            if case.run != "1.0":
                assert describe(grown, example, operations=OPERATIONS) == described
            assert describe(grown, example, before=start) == described
    assert [point.id for point in described.blocks] == [point.id for point in start.blocks]
    assert described.block_point(case.run).grown == 2
    assert described.parameters == sum(p.numel() for p in grown.parameters())
    again = rebuild(case.build(), described, example)
    again.load_state_dict(grown.state_dict())
    assert torch.equal(outputs(again, example, training=False), outputs(grown, example, training=False))


def test_layers_and_blocks_grow_in_any_order() -> None:
    model, example = GPT(2), tokens()
    described = describe(model, example, operations=OPERATIONS)
    for steps in (
        ["blocks.1.mlp.0", "blocks.0", "blocks.0", "blocks.1.mlp.0"],
        ["blocks.0", "blocks.1.mlp.0", "blocks.0"],
        ["blocks.0.mlp.0", "blocks.0"],
    ):
        grown, wanted, history = model, described, []
        for step in steps:
            if step == "blocks.0":
                grown, wanted = add_block(grown, step, example), block_added(wanted, step)
                history.append(BlockAdded(run=step))
            else:
                grown, wanted = deepen(grown, step, example), deepened(wanted, step)
                history.append(Deepened(point=step))
        assert describe(grown, example, operations=OPERATIONS) == wanted
        assert relative_error(outputs(grown, example, training=False), outputs(model, example, training=False)) < 1e-6
        followed = replay(model, history, example)
        followed.load_state_dict(grown.state_dict())
        assert describe(followed, example, operations=OPERATIONS) == wanted


def test_the_optimizer_keeps_what_it_knew() -> None:
    model, example = GPT(2), tokens()
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}])
    model(example).square().sum().backward()
    optimizer.step()
    grown = add_block(model, "blocks.0", example)
    carried = grow_optimizer(optimizer, model, grown)
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state[parameter].items():
            assert torch.equal(carried.state[grown.get_parameter(name)][key], value)
    for name, parameter in grown.named_parameters():
        if name.startswith("blocks.2."):
            assert parameter not in carried.state
            (group,) = (one for one in carried.param_groups if any(p is parameter for p in one["params"]))
            assert group["weight_decay"] == (0.1 if parameter.dim() > 1 else 0.0), name


def test_counts_and_names_of_blocks_stay_consistent() -> None:
    assert add_block(GPT(2), "blocks.0", tokens()).n_layer == 3
    assert add_block(encoder(), "layers.0", vectors()).num_layers == 3
    names = list(dict(add_block(resnet(2), "3", CASES["resnet"].example()).named_children()))
    assert names == ["0", "1", "2", "3", "4", "4_added_0", "5", "6", "7"]


def _all_of_the_same(m: nn.Module, x: Tensor) -> Tensor:
    return sum(block(x) for block in m.blocks)


def _keeping(m: nn.Module, x: Tensor) -> Tensor:
    kept = []
    for block in m.blocks:
        x = block(x)
        kept.append(x)
    return torch.stack(kept).mean(0)


def _by_number(m: nn.Module, x: Tensor) -> Tensor:
    return m.blocks[1](m.blocks[0](x))


def _scaled_blocks(forward: Callable[..., Tensor], *, tied: bool = False) -> nn.Module:
    blocks = CASES["layer scale"].build()
    if tied:
        blocks[1].up.weight = blocks[0].up.weight
    return Written(forward, blocks=blocks)


class Part(nn.Sequential):
    def __init__(self, residual: bool) -> None:
        super().__init__(nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 16))
        self.residual = residual

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + (x if self.residual else 0.0)


class Pairs(nn.Module):
    """Pairs whose parts the forward calls, as vit-pytorch writes it; `residual` parts add what they are given."""

    def __init__(self, pairs: int = 2, *, residual: bool = False) -> None:
        super().__init__()
        parts = [[Part(residual), Part(residual)] for _ in range(pairs)]
        self.layers = nn.ModuleList(map(nn.ModuleList, parts))
        self.norm = nn.LayerNorm(16)
        self.residual = residual

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for one, other in self.layers:
            x = other(one(x)) if self.residual else x + one(x)
            x = x if self.residual else x + other(x)
        return self.norm(x)


class Called(Pairs):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for pair in self.layers:
            x = pair(x)
        return self.norm(x)


class Pair(nn.ModuleList):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one, other = self
        x = one(x) + x
        return other(x) + x


def test_pairs_that_get_a_forward_keep_their_names_and_grow() -> None:
    model = nn.Sequential(nn.Linear(16, 16), Pairs())
    before, names = model(vectors()), list(model.state_dict())
    for pair in model[1].layers:
        pair.__class__ = Pair
    model[1].__class__ = Called
    assert [point.id for point in block_points(model, vectors())] == ["1.layers.0"]
    grown = add_block(model, "1.layers.0", vectors())
    assert torch.equal(grown(vectors()), before)
    assert list(model.state_dict()) == names
    assert len(grown[1].layers) == 3


@pytest.mark.parametrize(
    ("model", "run", "reason", "remedy"),
    [
        *(
            (make, run, "calls the parts of each element", "`for pair in self.layers: x = pair")
            for make, run in (
                (Pairs, "layers.0"),
                (lambda: nn.Sequential(Pairs(1)), "0.layers.0"),
                (lambda: Pairs(residual=True), "layers.0"),
            )
        ),
        (lambda: nn.Sequential(PostNorm(), PostNorm()), "0", "post-norm", "pre-norm"),
        (lambda: encoder(norm_first=False), "layers.0", "post-norm", "norm_first=True"),
        (lambda: _scaled_blocks(_keeping), "blocks.0", "does not run another block", "in a loop"),
        (lambda: _scaled_blocks(_all_of_the_same), "blocks.0", "does not run another block", "in a loop"),
        (
            lambda: _scaled_blocks(_by_number),
            "blocks.0",
            "does not run another block|operations with another block",
            "in a loop",
        ),
        (
            lambda: _scaled_blocks(lambda m, x: m.blocks(x), tied=True),
            "blocks.0",
            "shares 'up.weight' with 'blocks.0.up.weight'",
            "its own",
        ),
        (
            lambda: nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(2))),
            "0",
            "not residual",
            "x . f",
        ),
    ],
)
def test_what_is_refused_says_why_where_and_what_would_help(model, run, reason, remedy) -> None:
    built = model()
    assert block_points(built, vectors()) == []
    (refusal,) = refused_blocks(built, vectors())
    assert refusal.layer == run
    assert refusal.line > 0
    assert refusal.file.endswith(".py")
    with pytest.raises(GrowthError, match=reason):
        add_block(built, run, vectors())
    with pytest.raises(GrowthError, match=remedy):
        add_block(built, run, vectors())


def test_an_unknown_run_is_refused_with_the_known_ones() -> None:
    with pytest.raises(GrowthError, match="'blocks' is not a run of blocks of this model; its runs: blocks.0"):
        add_block(GPT(), "blocks", tokens())


SCALED = {
    "gpt": CASES["gpt"],
    "looped": CASES["looped"],
    "resnet": CASES["resnet"],
    "torch encoder, post-norm": Case(lambda: encoder(norm_first=False), vectors, "layers.0"),
    "post-norm": Case(lambda: nn.Sequential(PostNorm(), PostNorm()), vectors, "0"),
}


@pytest.mark.sweep("descriptions that grow by a block")
@pytest.mark.parametrize("case", SCALED.values(), ids=SCALED)
def test_scaled_growth_doubles_the_run_and_halves_its_last_projections(case: Case) -> None:
    model, example, kind = case.build(), case.example(), Insertion.SCALED
    before = copy.deepcopy(model.state_dict())
    start = described = describe(model, example, kind, OPERATIONS)
    length = len(described.block_point(case.run).copied)
    grown = model
    for _ in range(2):
        grown, described = add_block(grown, case.run, example, kind), block_added(described, case.run)
        with remembering(grown, example):
            assert describe(grown, example, kind, OPERATIONS) == described
            assert describe(grown, example, kind, before=start) == described
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert described.block_point(case.run).grown == 3 * length
    ratios = {
        name: (grown.state_dict()[name] / value).nanmean().item()
        for name, value in before.items()
        if value.is_floating_point() and not torch.equal(grown.state_dict()[name], value)
    }
    assert ratios
    assert all(ratio == pytest.approx(0.25) for ratio in ratios.values())
    again = rebuild(case.build(), described, example)
    again.load_state_dict(grown.state_dict())
    assert torch.equal(outputs(again, example, training=False), outputs(grown, example, training=False))


def test_a_linear_run_of_scaled_blocks_keeps_its_sum() -> None:
    """With branches that read the same whatever was added before them, half of twice as much is the same."""
    model = nn.Sequential(MixerBlock(), MixerBlock())
    with torch.no_grad():
        for block in model:
            for layer in (block.tokens[2], block.channels[2]):
                layer.weight.zero_()  # what is left are biases: constants
    grown = add_block(model, "0", vectors(), Insertion.SCALED)
    assert relative_error(outputs(grown, vectors(), training=False), outputs(model, vectors(), training=False)) < 1e-6
    assert len(grown) == 4


@pytest.mark.sweep("descriptions that grow by a block")
@pytest.mark.parametrize("case", SCALED.values(), ids=SCALED)
def test_a_run_unfolds_from_what_it_computes_to_a_scaled_run_of_twice_the_length(case: Case) -> None:
    model, example, kind = _without_dropout(case.build()), case.example(), Insertion.UNFOLD
    before = copy.deepcopy(model.state_dict())
    step = BlockAdded(run=case.run, insertion=kind)
    grown = step.again(model, example)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    for training in (False, True):
        wanted = outputs(copy.deepcopy(model), example, training=training)
        assert relative_error(outputs(copy.deepcopy(grown), example, training=training), wanted) < 1e-5, training
    scaled = add_block(model, case.run, example, Insertion.SCALED)
    assert describe(grown, example, kind, OPERATIONS) == describe(scaled, example, kind, OPERATIONS)
    apart = []
    for used in (0.2, 0.25, 0.3, 0.34):
        assert step.unfolds(grown)
        step.advance(grown, used)
        apart.append(relative_error(outputs(grown, example, training=False), outputs(scaled, example, training=False)))
    assert apart[-1] < min(apart[:-1])
    again = replay(case.build(), [step], example)
    again.load_state_dict(grown.state_dict())
    assert torch.equal(outputs(again, example, training=False), outputs(grown, example, training=False))
    for one in (grown, again):
        step.advance(one, 0.36)
        assert not step.unfolds(one)
        assert relative_error(outputs(one, example, training=False), outputs(scaled, example, training=False)) < 1e-5
    assert torch.equal(outputs(again, example, training=False), outputs(grown, example, training=False))
    late = replay(case.build(), [step], example)
    late.load_state_dict(grown.state_dict())
    assert not step.unfolds(late)
    assert torch.equal(outputs(late, example, training=False), outputs(grown, example, training=False))
    assert {name: value.shape for name, value in grown.state_dict().items() if ".unfolding." not in name} == {
        name: value.shape for name, value in scaled.state_dict().items()
    }


def test_both_copies_learn_from_the_first_step_on_while_a_run_unfolds() -> None:
    model = gpt(50, blocks=2)
    example = torch.randint(50, (2, 64), generator=torch.Generator().manual_seed(0))
    step = BlockAdded(run="blocks.0", insertion=Insertion.UNFOLD)
    grown = step.again(model, example)
    copied = copy.deepcopy(grown)
    step.advance(grown, 0.5)
    grown(example).square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.abs().max() > 0 for parameter in grown.parameters())
    assert copied.blocks[2].get_buffer("unfolding.gate").tolist() == [0.0, -1.0], "a copy unfolds by itself"
    copy.deepcopy(grown)  # nothing of a forward pass is left in it


def test_a_growth_ends_the_unfolding_of_an_earlier_one() -> None:
    model = gpt(50)
    example = torch.randint(50, (2, 64), generator=torch.Generator().manual_seed(0))
    step = BlockAdded(run="blocks.0", insertion=Insertion.UNFOLD)
    grown = replay(model, [step, step], example)
    assert [name for name in grown.state_dict() if "unfolding" in name] == ["blocks.2.unfolding.gate"]
    scaled = add_block(model, "blocks.0", example, Insertion.SCALED)
    assert relative_error(grown(example), scaled(example)) < 1e-5
    with_late_beginning = copy.deepcopy(grown)
    step.advance(with_late_beginning, 1.0)  # nothing is left of the budget
    assert not step.unfolds(with_late_beginning)


def test_a_block_with_an_attribute_of_the_gates_name_does_not_unfold() -> None:
    model = gpt(50)
    model.blocks[0].unfolding = 3
    with pytest.raises(GrowthError, match="'unfolding', which `insertion: Unfold` needs; rename it"):
        add_block(model, "blocks.0", torch.randint(50, (2, 64)), Insertion.UNFOLD)


def _checkpointed(blocks: Any, x: Tensor, *, reentrant: bool) -> Tensor:
    for block in blocks:
        x = checkpoint(block, x, use_reentrant=reentrant)
    return x


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad:UserWarning")  # in a trace
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("reentrant", [False, True])
def test_blocks_that_are_computed_again_one_by_one_do_not_unfold(reentrant: bool, count: int) -> None:
    """The second copy would read something else in the backward pass than in the forward pass."""
    ways = {"way": partial(_checkpointed, reentrant=reentrant)}
    model = Net(nn.ModuleList(Unit() for _ in range(count)), lambda blocks, x: ways["way"](blocks, x))
    with pytest.raises(GrowthError, match=r"gradient checkpointing around the calls .*use another `insertion`"):
        add_block(model, "blocks.0", ROWS, Insertion.UNFOLD)
    assert all(parameter.grad is None for parameter in model.parameters())
    add_block(model, "blocks.0", ROWS, Insertion.SCALED)
    ways["way"] = in_turn
    grown = add_block(model, "blocks.0", ROWS, Insertion.UNFOLD)
    ways["way"] = partial(_checkpointed, reentrant=reentrant)  # only after the growth
    with pytest.raises(GrowthError, match="gradient checkpointing around the calls of its blocks"):
        grown(ROWS).square().sum().backward()


def _gradients(model: nn.Module) -> dict[str, Tensor]:
    model.zero_grad()
    model(ROWS).square().sum().backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("around", ["whole run", "forward"])
def test_a_run_unfolds_under_checkpoints_that_keep_its_order(around: str) -> None:
    torch.manual_seed(0)
    ways = {"way": in_turn}
    if around == "whole run":
        ways["way"] = lambda blocks, x: checkpoint(in_turn, blocks, x, use_reentrant=False)
    model = Net(nn.ModuleList([Unit(), Unit()]), lambda blocks, x: ways["way"](blocks, x))
    grown = add_block(model, "blocks.0", ROWS, Insertion.UNFOLD)
    BlockAdded(run="blocks.0", insertion=Insertion.UNFOLD).advance(grown, 0.0)
    BlockAdded(run="blocks.0", insertion=Insertion.UNFOLD).advance(grown, 0.05)
    with recomputed(grown) if around == "forward" else nullcontext():
        found = _gradients(grown)
    ways["way"] = in_turn
    for name, wanted in _gradients(grown).items():
        torch.testing.assert_close(found[name], wanted)


def test_two_unfoldings_are_moved_by_one_walk_through_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    walked: list[float] = []
    monkeypatch.setattr("espalier_trainer.net2net.block.step.advance", lambda model, used: walked.append(used))
    module = nn.Linear(1, 1)
    history = tuple(
        BlockAdded(run="0", insertion=insertion) for insertion in (Insertion.UNFOLD, Insertion.EXACT, Insertion.UNFOLD)
    )
    Network(module, torch.optim.SGD(module.parameters(), lr=0.1), None, history).advance(0.5)
    Network(module, torch.optim.SGD(module.parameters(), lr=0.1), None, history[1:2]).advance(0.7)
    assert walked == [0.5]
