"""A script that holds parts of its model: they stay the model's when it grows, is resumed, or gives a trial up."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus
from torch.optim import Adam, Optimizer, lr_scheduler
from torch.utils.data import DataLoader, TensorDataset

from espalier_core.types.advice import Action
from espalier_core.types.job import Insertion
from espalier_trainer.own import join
from espalier_trainer.user_loop.state import UserState
from own_loops import held_copy
from own_scripts import another_process

REAL = torch.randn(24, 2, generator=torch.Generator().manual_seed(0))


class GAN(nn.Module):
    def __init__(self, generator: nn.Module, critic: nn.Module) -> None:
        super().__init__()
        self.G, self.D = generator, critic

    def forward(self, z: Tensor) -> Tensor:
        return self.D(self.G(z))


class Average:
    """An average of the weights, written by hand, over a list of the parameters there were at the start."""

    def __init__(self, model: nn.Module) -> None:
        self.own = list(model.parameters())
        self.mean = [parameter.detach().clone() for parameter in self.own]

    @torch.no_grad()
    def update(self) -> None:
        for mean, parameter in zip(self.mean, self.own, strict=True):
            mean.lerp_(parameter, 0.5)


def test_a_script_that_calls_the_parts_of_its_model_trains_them_when_it_has_grown(advised, advice_body):
    places = ["G.0", "D.0", "G.0", "D.0"]
    asked: list[object] = []

    def answer(body: dict[str, Any]) -> tuple[int, bytes]:
        asked.append(body)
        return 200, advice_body(places[len(asked) - 1])

    advised(answer)

    def script(epochs: int) -> tuple[list[dict[str, float]], GAN, list[Optimizer]]:
        torch.manual_seed(0)
        another_process()
        generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
        critic = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
        first, trained, stream = critic[0], [*generator.parameters()], generator.named_parameters
        model = GAN(generator, critic)
        both: list[Optimizer] = [Adam(generator.parameters(), 0.01), Adam(critic.parameters(), 0.01)]
        group = both[0].param_groups[0]
        scheduler = lr_scheduler.ExponentialLR(both[0], 0.99)
        batches = DataLoader(TensorDataset(REAL), batch_size=8)
        loop, loader = join(model, both, batches, scheduler, grow=True, example=torch.randn(2, 4))
        average = Average(model)
        moved: list[dict[str, float]] = []
        for _ in loop.epochs(epochs):
            before = {name: each.detach().clone() for name, each in model.named_parameters()}
            norms = []
            for (real,) in loader:
                fake = generator(torch.randn(len(real), 4))
                both[1].zero_grad()
                decay = sum(parameter.square().sum() for parameter in first.parameters())
                judged = softplus(critic(fake.detach())).mean() + softplus(-critic(real)).mean()
                loop.backward(judged + 1e-3 * decay)
                both[1].step()
                both[0].zero_grad()
                loop.backward(softplus(-critic(fake)).mean())
                norms.append(float(nn.utils.clip_grad_norm_(trained, 1.0)))
                both[0].step()
                average.update()
                assert group["lr"] == both[0].param_groups[0]["lr"]
            scheduler.step()
            moved.append(
                {name: float((each.detach() - before[name]).abs().sum()) for name, each in model.named_parameters()}
            )
            assert len(set(norms)) == len(norms)
            assert all(torch.dist(one, other) < 1 for one, other in zip(average.mean, average.own, strict=True))
            assert model.G is generator
            assert {name for name, _ in stream()} == {name for name, _ in model.G.named_parameters()}
        return moved, model, both

    moved, model, both = script(6)
    assert len(asked) >= 2
    assert len(moved[-1]) > len(moved[0]) >= 8
    assert [name for one in moved for name, far in one.items() if far == 0] == []
    assert all(
        len(one.param_groups[0]["params"]) == len(list(part.parameters()))
        for one, part in zip(both, (model.G, model.D), strict=True)
    )
    again = script(6)[1]  # what `join` has loaded
    assert all(torch.equal(one, again.state_dict()[name]) for name, one in model.state_dict().items())
    more = script(8)[0]  # resumed, and trained on, through the same parts
    assert len(more) == 2
    assert all(min(one.values()) > 0 for one in more)


def _net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2))


def test_a_trial_that_is_given_up_leaves_what_the_script_holds(make_checkpoint):
    model = _net()
    optimizer = Adam(model.parameters(), 0.01)
    parts, group, parameters = [*model.modules()], optimizer.param_groups[0], [*model.parameters()]
    state = UserState(model, optimizer, [])
    assert state.may_grow(REAL[:2], Insertion.EXACT, ["Deepen"]) == ""
    held = held_copy(state, make_checkpoint, architecture=state.network.architecture)
    before = held.capture().copied()
    for _ in range(2):
        state.adopt(state.network.grown(Action.deepen("0"), REAL[:2], Insertion.EXACT, 0))
        assert len([*model.parameters()]) == 6
        held.take(before)
        assert [*model.modules()] == parts
        assert all(one is other for one, other in zip(model.parameters(), parameters, strict=True))
        assert optimizer.param_groups == [group]
        assert optimizer.param_groups[0] is group
        assert type(model[1]) is nn.ReLU
