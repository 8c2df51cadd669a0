"""The optimizer of a grown model remembers everything about the parameters that were kept."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable

import pytest
import torch
from torch import Tensor, nn
from torch.optim import LBFGS, SGD, Adam, AdamW, Muon, Optimizer, RMSprop

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
    "SGD, momentum, fused": lambda p: SGD(p, lr=0.02, momentum=0.9, fused=True),
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
def test_state_of_kept_parameters_is_copied_and_moves_them_as_if_nothing_had_happened(kind: str) -> None:
    model = _model()
    optimizer = OPTIMIZERS[kind](model.parameters())
    _train(model, optimizer, 3)
    grown = deepen(deepen(model, "0", _INPUTS), "3", _INPUTS)
    follower = grow_optimizer(optimizer, model, grown)
    assert type(follower) is type(optimizer)
    assert follower.defaults == optimizer.defaults
    old, before = dict(model.named_parameters()), copy.deepcopy(grown.state_dict())
    for name, parameter in grown.named_parameters():
        assert any(parameter is other for group in follower.param_groups for other in group["params"]), name
        if name not in old:
            assert not any(value.any() for value in follower.state.get(parameter, {}).values())
            continue
        for key, value in optimizer.state.get(old[name], {}).items():
            kept = follower.state[parameter][key]
            assert kept is not value or value is None
            assert torch.equal(kept, value) if isinstance(value, Tensor) else kept == value
    _train(grown, follower, 1)
    _train(model, optimizer, 1)
    for name, parameter in grown.named_parameters():
        if name in old:
            torch.testing.assert_close(parameter, old[name], rtol=1e-6, atol=1e-7)
        else:
            assert not torch.equal(parameter, before[name]), name


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
    model[0].requires_grad_(False)
    model[1].requires_grad_(False)
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


def test_an_optimizer_of_another_model_is_refused() -> None:
    model = _model()
    optimizer = Adam(model.parameters())
    grown = deepen(model, "0", _INPUTS)
    order = r"grow first, then the optimizer, and only then rename: `grown = deepen\(model, ...\)`"
    with pytest.raises(GrowthError, match=f"the old and the new model are one and the same; {order}"):
        grow_optimizer(optimizer, grown, grown)  # `model = deepen(model, ...)` came first
    with pytest.raises(GrowthError, match=f"the optimizer holds no parameter of the old model; {order}"):
        grow_optimizer(optimizer, copy.deepcopy(model), grown)
    with pytest.raises(GrowthError, match=f"the optimizer holds parameters of the new model; {order}"):
        grow_optimizer(Adam([*model.parameters(), *grown[2].parameters()]), model, grown)


class TwoPlayers(nn.Module):
    """A generator and a discriminator; the latter's activations are registered before its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 4))
        self.activation = nn.LeakyReLU(0.2)
        self.hidden = nn.Linear(4, 8, bias=False)
        self.norm = nn.LayerNorm(8)
        self.verdict = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return what the discriminator says of what the generator makes of x."""
        return self.verdict(self.activation(self.norm(self.hidden(self.generator(x)))))


def _held(optimizers: Iterable[Optimizer], model: nn.Module) -> dict[str, list[tuple[int, int]]]:
    """Return for each parameter of the model the optimizers and groups that hold it."""
    return {
        name: [
            (index, place)
            for index, optimizer in enumerate(optimizers)
            for place, group in enumerate(optimizer.param_groups)
            if any(parameter is one for one in group["params"])
        ]
        for name, parameter in model.named_parameters()
    }


def test_of_two_optimizers_the_neighbours_takes_the_new_layer() -> None:
    model = TwoPlayers()
    rest = [parameter for name, parameter in model.named_parameters() if not name.startswith("generator.")]
    optimizers = [Adam(model.generator.parameters()), Adam(rest)]
    grown = deepen(deepen(model, "generator.0", _INPUTS), "hidden", _INPUTS)
    held = _held([grow_optimizer(one, model, grown) for one in optimizers], grown)
    assert {name: place for name, place in held.items() if "grown" in name} == {
        "generator.1.grown.0.linear.weight": [(0, 0)],
        "generator.1.grown.0.linear.bias": [(0, 0)],
        "activation.grown.0.linear.weight": [(1, 0)],
        "activation.grown.0.linear.bias": [(1, 0)],
    }
    assert all(len(places) == 1 for places in held.values())


def test_optimizers_by_kind_of_parameter_share_a_new_layer() -> None:
    model = _model()
    weights = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    others = [parameter for parameter in model.parameters() if parameter.dim() <= 1]
    optimizers = [Muon(weights), AdamW([{"params": others[:1]}, {"params": others[1:], "lr": 0.5}])]
    grown = deepen(deepen(model, "0", _INPUTS), "3", _INPUTS)
    held = _held([grow_optimizer(one, model, grown) for one in optimizers], grown)
    assert held["2.grown.0.linear.weight"] == held["4.grown.0.linear.weight"] == [(0, 0)]
    assert held["2.grown.0.linear.bias"] == [(1, 0)]
    assert held["4.grown.0.linear.bias"] == [(1, 1)]


def test_a_model_that_became_a_part_of_another_keeps_its_neighbours() -> None:
    part, other = TwoPlayers(), nn.Linear(1, 1)
    old = nn.ModuleDict({"other": other, "part": part})
    new = nn.ModuleDict({"other": other, "part": deepen(part, "hidden", _INPUTS)})
    # `other` is the same in both models, so it counts as kept.
    held = _held([grow_optimizer(SGD(part.hidden.parameters()), old, new)], new)
    assert held["part.activation.grown.0.linear.weight"] == [(0, 0)]


def test_muon_alone_does_not_take_the_bias() -> None:
    model = nn.Sequential(nn.Linear(4, 6, bias=False), nn.ReLU(), nn.Linear(6, 5, bias=False))
    with pytest.raises(GrowthError) as error:
        grow_optimizer(Muon(model.parameters()), model, deepen(model, "0", _INPUTS))
    assert "Muon cannot be built again" in str(error.value)
    assert (
        "growth added '1.grown.0.linear.weight', '1.grown.0.linear.bias', which another optimizer takes if it "
        "holds the same kind of parameter of the layer before" in str(error.value)
    )


class Lookahead:
    """Wraps an optimizer, and is none."""

    def __init__(self, inner: Optimizer) -> None:
        self.optimizer = inner
        self.param_groups = inner.param_groups


class SharpnessAware(Optimizer):
    """Holds a base optimizer, as published implementations of SAM do."""

    def __init__(self, params: Iterable[Tensor], base: type[Optimizer], rho: float = 0.05, **settings: float) -> None:
        super().__init__(params, {"rho": rho, **settings})
        self.base_optimizer = base(self.param_groups, **settings)

    def step(self, closure: None = None) -> None:
        """Do a step of the base optimizer."""
        self.base_optimizer.step(closure)


class Named(Optimizer):
    """Its constructor needs an argument that its defaults do not hold."""

    def __init__(self, params: Iterable[Tensor], name: str) -> None:
        super().__init__(params, {})
        self.name = name


def test_wrappers_are_refused_with_what_they_wrap() -> None:
    model = _model()
    grown = deepen(model, "0", _INPUTS)
    wrapped: list[tuple[object, str]] = [
        (
            Lookahead(Adam(model.parameters())),
            "Lookahead wraps another optimizer; give the optimizer in its `.optimizer`",
        ),
        (
            SharpnessAware(model.parameters(), SGD, lr=0.1),
            r"SharpnessAware wraps .* its `.base_optimizer`, and wrap the",
        ),
        (object(), "object is not a torch.optim.Optimizer"),
        (Named(model.parameters(), "mine"), r"Named cannot be built again .*TypeError: .*'name'"),
    ]
    for optimizer, text in wrapped:
        with pytest.raises(GrowthError, match=text):
            grow_optimizer(optimizer, model, grown)
