"""A smaller model of what survives of a larger: weights, moments, statistics, and what is folded into neighbours."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from espalier_core.growth.architecture import Architecture
from espalier_trainer.distillation import ShrinkError, fill, fold, readers, recalibrate, shrink_optimizer
from espalier_trainer.models.zoo import SmallNet
from espalier_trainer.net2net import DeepenBlock, deepen, grow_optimizer, widen, widening_groups
from espalier_trainer.net2net.description import describe

EXAMPLE = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))


def net() -> nn.Module:
    torch.manual_seed(1)
    return SmallNet(1, 6, 8, 10)


def images(count: int, seed: int = 5) -> Tensor:
    return torch.randn(count, 1, 8, 8, generator=torch.Generator().manual_seed(seed))


def train(module: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    module.train()
    for step in range(steps):
        inputs, labels = images(32, step), torch.arange(32) % 10
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(inputs), labels).backward()
        optimizer.step()


@pytest.mark.parametrize("points", [("block0",), ("block2", "block0"), ("block1", "block1")])
def test_growth_that_learnt_nothing_is_taken_back_without_a_trace(points: tuple[str, ...]) -> None:
    small = net()
    large = small
    for point in points:
        large = deepen(large, point, EXAMPLE)
    found = net()
    fill(found, large)
    for mode in (False, True):
        torch.testing.assert_close(found.train(mode)(images(9)), large.train(mode)(images(9)), rtol=0, atol=1e-6)


def test_what_survives_is_the_larger_models_and_its_moments_go_with_it() -> None:
    small = net()
    large = deepen(small, "block0", EXAMPLE)
    optimizer = grow_optimizer(torch.optim.AdamW(small.parameters(), lr=0.01, weight_decay=0.1), small, large)
    train(large, optimizer, 5)
    found = net()
    fill(found, large)
    shrunk = shrink_optimizer(optimizer, large, found)
    assert isinstance(shrunk, torch.optim.AdamW)
    theirs = dict(large.named_parameters())
    for name, parameter in found.named_parameters():
        assert torch.equal(parameter, theirs[name])
        assert parameter.data_ptr() != theirs[name].data_ptr()
        for key, value in optimizer.state[theirs[name]].items():
            assert torch.equal(shrunk.state[parameter][key], value)
    options = {key: value for key, value in optimizer.param_groups[0].items() if key != "params"}
    assert {key: value for key, value in shrunk.param_groups[0].items() if key != "params"} == options
    before = copy.deepcopy(large.state_dict())
    train(found, shrunk, 2)
    for name, tensor in large.state_dict().items():
        assert torch.equal(tensor, before[name]), name


def test_groups_stay_apart_and_one_that_lost_all_is_left_out() -> None:
    small = nn.Sequential(DeepenBlock(nn.Linear(4, 4), nn.ReLU()), nn.Linear(4, 2))
    example = torch.randn(2, 4)
    large = deepen(small, "0", example)
    new = [parameter for name, parameter in large.named_parameters() if "grown" in name]
    old = [parameter for name, parameter in large.named_parameters() if "grown" not in name]
    optimizer = torch.optim.SGD([{"params": new, "lr": 0.5}, {"params": old, "lr": 0.1, "momentum": 0.9}], lr=1)
    shrunk = shrink_optimizer(optimizer, large, small)
    assert [(group["lr"], group["momentum"], len(group["params"])) for group in shrunk.param_groups] == [(0.1, 0.9, 4)]


def test_a_widened_layer_is_refused_by_name_with_nothing_changed() -> None:
    small = net()
    group = widening_groups(small, EXAMPLE)[0]
    large = widen(small, group.id, group.width + 2, EXAMPLE, seed=0)
    target = net()
    before = copy.deepcopy(target.state_dict())
    with pytest.raises(
        ShrinkError, match=r"'block0.0.weight' is \(8, 1, 3, 3\) in the larger model and \(6, 1, 3, 3\)"
    ):
        fill(target, large)
    with pytest.raises(ShrinkError, match="is in the smaller model, not in the larger"):
        fill(deepen(small, "block0", EXAMPLE), small)
    assert all(torch.equal(tensor, before[name]) for name, tensor in target.state_dict().items())


def test_statistics_are_those_of_what_the_layers_now_see() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Dropout(0.5), nn.ReLU(), nn.Conv2d(3, 2, 1))
    model.append(nn.BatchNorm2d(2, momentum=0.3, track_running_stats=False))
    batches = [images(16, seed) for seed in range(3)]
    weights = {name: parameter.clone() for name, parameter in model.named_parameters()}
    model.train()
    model[2].eval()
    recalibrate(model, batches)
    outputs = [model[0](inputs).detach() for inputs in batches]
    mean = torch.stack([output.mean((0, 2, 3)) for output in outputs]).mean(0)
    variance = torch.stack([output.var((0, 2, 3)) for output in outputs]).mean(0)
    torch.testing.assert_close(model[1].running_mean, mean)
    torch.testing.assert_close(model[1].running_var, variance)
    assert (model[1].momentum, model[5].momentum) == (0.1, 0.3)
    assert [module.training for module in model] == [True, True, False, True, True, True]
    assert all(torch.equal(parameter, weights[name]) for name, parameter in model.named_parameters())


def described(module: nn.Module) -> Architecture:
    return describe(module, EXAMPLE)


def test_readers_are_the_first_weights_after_what_is_gone() -> None:
    small = net()
    once = deepen(small, "block0", EXAMPLE)
    twice = deepen(once, "block2", EXAMPLE)
    assert readers(described(once), described(small)) == ("block1.0",)
    assert readers(described(twice), described(small)) == ("block1.0", "classifier")
    assert readers(described(twice), described(once)) == ("classifier",)
    assert readers(described(small), described(small)) == ()


def opened(model: nn.Module, prefix: str) -> None:
    """Make grown layers linear in effect: positive weights, on what a ReLU let through."""
    chance = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.startswith(prefix):
                size = torch.rand(parameter.shape, generator=chance) * 0.3
                parameter.copy_(parameter + size if name.endswith("weight") and parameter.dim() > 1 else size)


@pytest.mark.parametrize("point", ["block1", "block2"])
def test_a_linear_block_is_folded_exactly_into_the_layer_after_it(point: str) -> None:
    # Of a 1x1 convolution and of a linear layer: behind the former stands the average over all pixels, which it passes.
    small = net()
    large = deepen(small, point, EXAMPLE)
    opened(large, f"{point}.grown")
    found = net()
    fill(found, large)
    apart = (found.eval()(images(50)) - large.eval()(images(50))).abs().max()
    assert apart > 0.1
    fitted = fold(found, large, readers(described(large), described(small)), [images(64, seed) for seed in range(4)])
    assert fitted == ({"block1": "block2.0", "block2": "classifier"}[point],)
    torch.testing.assert_close(found(images(50)), large(images(50)), rtol=0, atol=1e-3)


def test_what_is_not_linear_is_brought_as_near_as_a_layer_can() -> None:
    small = net()
    large = deepen(small, "block0", EXAMPLE)
    train(large, torch.optim.Adam(large.parameters(), lr=0.01), 60)
    batches = [images(64, seed) for seed in range(4)]
    filled, folded = net(), net()
    fill(filled, large)
    fill(folded, large)
    wanted = large.eval()(images(100, 99)).detach()
    names = readers(described(large), described(small))
    assert fold(folded.train(), large, names, batches) == ("block1.0",)
    assert folded.training
    assert not large.training
    without = (filled.eval()(images(100, 99)) - wanted).square().mean()
    within = (folded.eval()(images(100, 99)) - wanted).square().mean()
    assert within < without


def test_a_layer_that_the_batches_cannot_tell_stays_as_it_was() -> None:
    torch.manual_seed(0)
    small = nn.Sequential(DeepenBlock(nn.Linear(4, 30), nn.ReLU()), nn.Linear(30, 2))
    large = deepen(small, "0", torch.randn(2, 4))
    before = copy.deepcopy(small[1].state_dict())
    assert fold(small, large, ("1",), [torch.randn(64, 4)]) == ()
    assert all(torch.equal(tensor, before[name]) for name, tensor in small[1].state_dict().items())


def test_grouped_convolutions_are_left_to_distillation() -> None:
    torch.manual_seed(0)
    small = nn.Sequential(DeepenBlock(nn.Conv2d(1, 4, 1), nn.ReLU()), nn.Conv2d(4, 4, 3, groups=2))
    large = deepen(small, "0", EXAMPLE)
    assert fold(small, large, ("1",), [images(64)]) == ()
