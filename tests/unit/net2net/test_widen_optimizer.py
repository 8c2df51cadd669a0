"""After widening, training continues: copies move apart, and the optimizer knows of each weight what it knew."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch
from growth_cases import relative_error, torchvision_case
from torch import Tensor, nn
from torch.optim import LBFGS, SGD, Adafactor, Adam, Optimizer, RMSprop

from espalier_trainer.net2net import GrowthError, deepen, grow_optimizer, plan_widening, widen, widen_optimizer, widened
from espalier_trainer.net2net.trace.tracing import trace
from espalier_trainer.net2net.widening.groups import find_groups

_INPUTS = torch.randn(8, 4, generator=torch.Generator().manual_seed(5))


def _model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 5), nn.SiLU(), nn.Linear(5, 3))


def _train(model: nn.Module, optimizer: Optimizer, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        model(_INPUTS).square().sum().backward()
        optimizer.step()


def _momenta(model: nn.Module, optimizer: Optimizer, key: str) -> dict[str, Tensor]:
    return {name: optimizer.state[parameter][key] for name, parameter in model.named_parameters()}


def test_moments_follow_the_gradients() -> None:
    """A momentum of one gradient is what the wider model's own first gradient would have been, for all its weights."""
    model = _model()
    optimizer = SGD(model.parameters(), lr=0.0, momentum=0.9)
    _train(model, optimizer, 1)
    widening = plan_widening(model, "0", 9, _INPUTS, seed=1)
    wider = widened(model, widening)
    carried = _momenta(wider, widen_optimizer(optimizer, model, wider, widening), "momentum_buffer")
    fresh = SGD(wider.parameters(), lr=0.0, momentum=0.9)
    _train(wider, fresh, 1)
    for name, wanted in _momenta(wider, fresh, "momentum_buffer").items():
        # The gradient of a bias before batch norm is 0, and what is left of it rounding.
        torch.testing.assert_close(carried[name], wanted, rtol=1e-4, atol=2e-5, msg=name)


@pytest.mark.sweep("torchvision models")
@pytest.mark.parametrize("name", ["resnet18", "densenet121", "efficientnet_b0", "regnet_y_400mf", "shufflenet_v2_x0_5"])
def test_moments_follow_the_gradients_through_every_coupling(name: str) -> None:
    """Residual, concatenating, depthwise, squeeze-excite and grouped networks, in float64 to leave rounding out."""
    model = torchvision_case(name).model.double()
    example = torch.randn(3, 3, 40, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    def step(network: nn.Module) -> SGD:
        optimizer = SGD(network.parameters(), lr=0.0, momentum=0.9)
        network(example).square().sum().backward()
        optimizer.step()
        return optimizer

    optimizer = step(model)
    groups = find_groups(model, trace(model, example)).found
    for group in groups[:: max(1, len(groups) // 2)]:
        widening = plan_widening(model, group, group.width + 2 * group.multiple_of, example, seed=1)
        wider = widened(model, widening)
        fresh = _momenta(wider, step(wider), "momentum_buffer")
        carried = _momenta(wider, widen_optimizer(optimizer, model, wider, widening), "momentum_buffer")
        for key, wanted in fresh.items():
            assert relative_error(carried[key], wanted) <= 1e-8 or wanted.abs().max() < 1e-10, (group.id, key)


def test_second_moments_are_squares() -> None:
    model = _model()
    optimizer = Adam(model.parameters(), lr=0.0, betas=(0.9, 0.99))
    _train(model, optimizer, 2)
    widening = plan_widening(model, "0", 9, _INPUTS, seed=1)
    wider = widened(model, widening)
    follower = widen_optimizer(optimizer, model, wider, widening)
    first, second = (_momenta(wider, follower, key) for key in ("exp_avg", "exp_avg_sq"))
    for name in ("0.weight", "1.weight", "3.weight"):
        # Of one gradient seen twice: exp_avg = .19 g, exp_avg_sq = .0199 g^2.
        torch.testing.assert_close(second[name], 0.0199 * (first[name] / 0.19) ** 2, rtol=1e-3, atol=1e-9)
    assert all(state["step"] == 2 for state in follower.state.values())
    assert torch.equal(optimizer.state[model[5].weight]["exp_avg"], first["5.weight"])


@pytest.mark.parametrize("kind", ["SGD", "Adam", "RMSprop"])
def test_copies_diverge(kind: str) -> None:
    model = _model()
    optimizer: Optimizer = {
        "SGD": lambda: SGD(model.parameters(), lr=0.02, momentum=0.9),
        "Adam": lambda: Adam(model.parameters(), lr=0.02),
        "RMSprop": lambda: RMSprop(model.parameters(), lr=0.02, momentum=0.5, centered=True),
    }[kind]()
    _train(model, optimizer, 3)
    widening = plan_widening(model, "3", 10, _INPUTS, seed=2)
    wider = widened(model, widening)
    follower = widen_optimizer(optimizer, model, wider, widening)
    source = widening.replication.source
    copies = [(i, j) for i in range(10) for j in range(i) if source[i] == source[j]]
    rows = wider.get_parameter("3.weight")
    assert copies
    assert all(torch.equal(rows[i], rows[j]) for i, j in copies)
    _train(wider, follower, 5)
    assert all(not torch.allclose(rows[i], rows[j], rtol=1e-4, atol=1e-6) for i, j in copies)


def test_groups_keep_their_settings_and_the_old_optimizer_its_model() -> None:
    model = _model()
    optimizer = SGD(
        [{"params": list(model[0].named_parameters()), "lr": 0.1}, {"params": list(model[3].named_parameters())}],
        lr=0.2,
    )
    widening = plan_widening(model, "0", 9, _INPUTS, seed=1)
    wider = widened(model, widening)
    follower = widen_optimizer(optimizer, model, wider, widening)
    assert [group["lr"] for group in follower.param_groups] == [0.1, 0.2]
    assert follower.param_groups[0]["params"][0] is wider.get_parameter("0.weight")
    assert follower.param_groups[0]["param_names"] == ["weight", "bias"]
    assert optimizer.param_groups[0]["params"][0] is model[0].weight


def test_an_optimizer_of_unknown_state_is_refused() -> None:
    model = _model()
    widening = plan_widening(model, "0", 9, _INPUTS, seed=1)
    wider = widened(model, widening)
    with pytest.raises(GrowthError, match="LBFGS"):
        widen_optimizer(LBFGS(model.parameters()), model, wider, widening)
    optimizer = SGD(model.parameters(), lr=0.1)
    optimizer.state[model[0].weight]["strange"] = torch.zeros(6, 4)
    with pytest.raises(GrowthError, match="SGD has a state 'strange'"):
        widen_optimizer(optimizer, model, wider, widening)


class Factored(Optimizer):
    """Adafactor's second moments: a mean over rows and one over columns."""

    def __init__(self, params: Iterable[Tensor], lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """Divide each gradient by the root of its row's and its column's mean square."""
        for group in self.param_groups:
            for parameter in group["params"]:
                square = parameter.grad.square() + 1e-8
                if parameter.dim() < 2:
                    self.state[parameter]["exp_avg_sq"] = square
                    parameter.sub_(group["lr"] * parameter.grad / square.sqrt())
                    continue
                state = self.state[parameter]
                row, column = square.mean(-1), square.mean(-2)
                state["exp_avg_sq_row"] = 0.9 * state.get("exp_avg_sq_row", row) + 0.1 * row
                state["exp_avg_sq_col"] = 0.9 * state.get("exp_avg_sq_col", column) + 0.1 * column
                state["RMS"] = torch.ones(1)
                scale = (state["exp_avg_sq_row"][:, None] * state["exp_avg_sq_col"] / row.mean()).sqrt()
                parameter.sub_(group["lr"] * parameter.grad / scale)


@pytest.mark.parametrize("kind", [Factored, Adafactor])
def test_factored_states_are_refused_at_growth(kind: type[Optimizer]) -> None:
    model = _model()
    optimizer = kind(model.parameters())
    _train(model, optimizer, 1)
    widening = plan_widening(model, "0", 9, _INPUTS, seed=1)
    wider = widened(model, widening)
    with pytest.raises(GrowthError, match=r"state '\w+' of a parameter of shape \(6, 4\) has shape .* build a new"):
        widen_optimizer(optimizer, model, wider, widening)
    deeper = deepen(model, "0", _INPUTS)
    _train(deeper, grow_optimizer(optimizer, model, deeper), 1)


def test_an_optimizer_of_another_model_is_refused() -> None:
    model = _model()
    optimizer = SGD(model.parameters())
    widening = plan_widening(model, "0", 9, _INPUTS, seed=1)
    wider = widened(model, widening)
    with pytest.raises(GrowthError, match="the old and the new model are one and the same; grow first"):
        widen_optimizer(optimizer, wider, wider, widening)
    with pytest.raises(GrowthError, match="the optimizer holds parameters of the new model; grow first"):
        widen_optimizer(SGD(wider.parameters()), model, wider, widening)


def test_frozen_parameters_stay_frozen() -> None:
    model = _model()
    model[0].requires_grad_(False)
    wider = widen(model, "0", 9, _INPUTS, seed=0)
    assert not wider.get_parameter("0.weight").requires_grad
    assert wider.get_parameter("3.weight").requires_grad
