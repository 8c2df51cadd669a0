"""Layers, whole blocks and channels in any order: the model computes the same, and growing its description commutes."""

from __future__ import annotations

import copy

import pytest
import torch
from block_cases import BasicBlock
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter
from residual_nets import Unit
from torch import Tensor, nn
from torch.optim import AdamW

from espalier_core.types.advice import Action
from espalier_trainer.net2net import Growth
from espalier_trainer.net2net.description import describe
from espalier_trainer.net2net.history import replay, step_of

HISTORY: TypeAdapter[tuple[Growth, ...]] = TypeAdapter(tuple[Growth, ...])


def _rows() -> tuple[nn.Module, Tensor]:
    return nn.Sequential(nn.Linear(3, 8), nn.Sequential(Unit(), Unit()), nn.Linear(8, 2)), torch.randn(3, 3)


def _maps() -> tuple[nn.Module, Tensor]:
    layers = (nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), BasicBlock(4), nn.AdaptiveAvgPool2d(1))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(4, 2)), torch.randn(3, 1, 5, 5)


@pytest.mark.sweep("networks that grow in any order")
@pytest.mark.parametrize(("build", "run"), [(_rows, "1.0"), (_maps, "3")])
@given(draw=st.data())
@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_growths_of_every_kind_in_any_order(build, run, draw) -> None:
    torch.manual_seed(0)
    model, example = build()
    start = copy.deepcopy(model)
    described = describe(model, example, operations=["Widen", "AddBlock"])
    assert run in [point.id for point in described.blocks or ()]
    optimizer: torch.optim.Optimizer = AdamW(model.parameters())
    history = []
    for seed in range(3):
        ways = [Action(kind="AddBlock", target=point.id) for point in described.blocks or ()]
        ways += [Action.widen(group.id, 2 * group.width) for group in described.channel_groups if group.width <= 16]
        ways += [Action.deepen(point.id) for point in described.growth_points]
        action = draw.draw(st.sampled_from(ways))
        step = step_of(action.kind).planned(action, described, "Exact", seed)
        grown, optimizer = step.grown(model, optimizer, example)
        wanted = action.carried_out(described)
        described = describe(grown, example, before=described)
        assert described == wanted
        for training in (False, True):
            one, other = (copy.deepcopy(each).train(training)(example) for each in (model, grown))
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
        grown(example).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        history.append(step)
        model = grown
    read = HISTORY.validate_json(HISTORY.dump_json(tuple(history)))
    assert read == tuple(history)
    again = replay(start, read, example)
    again.load_state_dict(model.state_dict())
    assert torch.equal(again.eval()(example), model.eval()(example))
