"""The optimizer of a grown model remembers everything about the parameters that were kept."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable

import pytest
import torch
from torch import Tensor, nn
from torch.optim import LBFGS, SGD, Adam, AdamW, Optimizer, RMSprop

from espalier_trainer.net2net import GrowthError, deepen, grow_optimizer

_INPUTS = torch.randn(8, 4, generator=torch.Generator().manual_seed(5))

OPTIMIZERS: dict[str, Callable[[Iterable[Tensor]], Optimizer]] = {
    "Adam": lambda p: Adam(p, lr=0.02, betas=(0.8, 0.99)),
    "Adam, amsgrad, not foreach": lambda p: Adam(p, lr=0.02, amsgrad=True, foreach=False),
    "Adam, fused": lambda p: Adam(p, lr=0.02, fused=True),
    "Adam, tensor rate": lambda p: Adam(p, lr=torch.tensor(0.02), foreach=False),
    "AdamW": lambda p: AdamW(p, lr=0.02, weight_decay=0.1),
    "SGD": lambda p: SGD(p, lr=0.02),
    "SGD, momentum": lambda p: SGD(p, lr=0.02, momentum=0.9, nesterov=True, weight_decay=1e-3),
    "RMSprop": lambda p: RMSprop(p, lr=0.02, momentum=0.5, centered=True),
}


def _model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 5), nn.SiLU(), nn.Linear(5, 3))


def _train(model: nn.Module, optimizer: Optimizer, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        model(_INPUTS).square().sum().backward()
        optimizer.step()


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_state_of_kept_parameters_is_copied(kind: str) -> None:
    model = _model()
    optimizer = OPTIMIZERS[kind](model.parameters())
    _train(model, optimizer, 3)
    grown = deepen(deepen(model, "0", _INPUTS), "3", _INPUTS)
    follower = grow_optimizer(optimizer, model, grown)
    assert type(follower) is type(optimizer)
    assert follower.defaults == optimizer.defaults
    old = dict(model.named_parameters())
    for name, parameter in grown.named_parameters():
        assert any(parameter is other for group in follower.param_groups for other in group["params"]), name
        if name not in old:
            assert parameter not in follower.state
            continue
        for key, value in optimizer.state.get(old[name], {}).items():
            kept = follower.state[parameter][key]
            assert kept is not value or value is None
            assert torch.equal(kept, value) if isinstance(value, Tensor) else kept == value


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_the_first_step_moves_kept_parameters_as_if_nothing_had_happened(kind: str) -> None:
    model = _model()
    optimizer = OPTIMIZERS[kind](model.parameters())
    _train(model, optimizer, 3)
    grown = deepen(model, "0", _INPUTS)
    follower = grow_optimizer(optimizer, model, grown)
    new_before = copy.deepcopy(grown.get_submodule("2.grown").state_dict())
    _train(grown, follower, 1)
    _train(model, optimizer, 1)
    kept = dict(grown.named_parameters())
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(kept[name], parameter, rtol=1e-6, atol=1e-7)
    moved = grown.get_submodule("2.grown").state_dict()
    assert all(not torch.equal(moved[key], value) for key, value in new_before.items())


def test_groups_keep_their_parameters_and_settings() -> None:
    model = _model()
    weights = [p for n, p in model.named_parameters() if p.dim() > 1]
    others = [p for n, p in model.named_parameters() if p.dim() <= 1]
    scale = nn.Parameter(torch.ones(()))  # of a loss, no part of the model
    optimizer = AdamW(
        [
            {"params": weights, "weight_decay": 0.3},
            {"params": others, "weight_decay": 0.0, "lr": 0.5},
            {"params": scale},
        ]
    )
    torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)  # leaves `initial_lr` in the groups
    grown = deepen(model, "0", _INPUTS)
    follower = grow_optimizer(optimizer, model, grown)
    names = {id(parameter): name for name, parameter in grown.named_parameters()}
    found = [[names.get(id(p), "scale") for p in group["params"]] for group in follower.param_groups]
    assert found == [
        ["0.weight", "3.weight", "5.weight", "2.grown.0.linear.weight"],
        ["0.bias", "1.weight", "1.bias", "3.bias", "5.bias", "2.grown.0.linear.bias"],
        ["scale"],
    ]
    for old, new in zip(optimizer.param_groups, follower.param_groups, strict=True):
        assert {k: v for k, v in new.items() if k != "params"} == {k: v for k, v in old.items() if k != "params"}


def test_new_parameters_do_not_join_a_frozen_layer() -> None:
    model = _model()
    optimizer = SGD([{"params": model[5].parameters(), "lr": 0.1}, {"params": model[3].parameters(), "lr": 0.2}])
    follower = grow_optimizer(optimizer, model, deepen(model, "0", _INPUTS))
    assert [len(group["params"]) for group in follower.param_groups] == [2, 4]


def test_named_groups_stay_named() -> None:
    model = _model()
    optimizer = SGD(model.named_parameters(), lr=0.1)
    follower = grow_optimizer(optimizer, model, deepen(model, "0", _INPUTS))
    assert follower.param_groups[0]["param_names"][-2:] == ["2.grown.0.linear.weight", "2.grown.0.linear.bias"]


def test_wrong_models_and_optimizers_are_refused() -> None:
    model = _model()
    with pytest.raises(GrowthError, match=r"parameter '0.weight' of shape \(6, 4\): found shape \(9, 4\)"):
        grow_optimizer(SGD(model.parameters()), model, nn.Sequential(nn.Linear(4, 9)))
    with pytest.raises(GrowthError, match="parameter '3.weight' .* found no such parameter"):
        grow_optimizer(SGD(model.parameters()), model, nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6)))
    with pytest.raises(GrowthError, match="LBFGS"):
        grow_optimizer(LBFGS(model.parameters()), model, model)
