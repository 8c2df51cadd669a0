"""Widening and deepening a description, in any order, gives what describing the grown model gives."""

from __future__ import annotations

import pytest
import torch
from growth_cases import torchvision_case
from hypothesis import given, settings
from hypothesis import strategies as st
from residual_nets import Written
from test_widening import IMAGE, MODELS, conv
from torch import Tensor, nn

import sweeps
from espalier_core.growth.architecture import Architecture, GrowthError
from espalier_core.growth.channel_groups import ChannelGroup, Channels
from espalier_core.growth.deepen import deepened
from espalier_core.growth.widen import widened
from espalier_core.types.job import Insertion
from espalier_trainer.models.zoo import cifar8, cnn1, cnn2, digits
from espalier_trainer.net2net import deepen, growth_points, widen, widening_groups
from espalier_trainer.net2net.description import describe
from espalier_trainer.net2net.modules import remembering


def _bottleneck(m: nn.Module, x: Tensor) -> Tensor:
    x = torch.relu(m.stem(x))
    y = torch.relu(m.norm(m.down(x)))
    x = m.act(x + m.up(y))
    return m.head(torch.relu(m.side(x)) + x).flatten(2).mean(2)


def _ways(m: nn.Module, x: Tensor) -> Tensor:
    skipped = m.skip(x)
    return m.head(m.act(m.one(x)) + skipped)


STRUCTURES = {name: (build, IMAGE) for name, (build, _) in MODELS.items()} | {
    "bottleneck": (
        lambda: Written(
            _bottleneck, stem=conv(3, 6), down=nn.Conv2d(6, 4, 1), norm=nn.BatchNorm2d(4), up=nn.Conv2d(4, 6, 1),
            act=nn.SiLU(), side=nn.Conv2d(6, 6, 1), head=nn.Conv2d(6, 2, 1),
        ),
        IMAGE,
    ),
    "a way around": (
        lambda: Written(_ways, skip=conv(3, 6), one=conv(3, 6), act=nn.ReLU(), head=conv(6, 2)), IMAGE
    ),
    "an activation at the end": (lambda: Written(lambda m, x: m.act(m.one(x)), one=conv(3, 4), act=nn.ReLU()), IMAGE),
    "grouped block": (
        lambda: nn.Sequential(conv(3, 6), conv(6, 6, groups=2), nn.BatchNorm2d(6), nn.ReLU(), conv(6, 4)), IMAGE
    ),
    "depthwise block, PReLU": (
        lambda: nn.Sequential(conv(3, 4), conv(4, 8, groups=4), nn.PReLU(8), conv(8, 4), nn.ReLU(), nn.Flatten(),
                              nn.Linear(256, 6), nn.Tanh(), nn.Linear(6, 2)),
        IMAGE,
    ),
    "digits": (digits, torch.randn(2, 1, 8, 8)),
    "cifar8": (cifar8, torch.randn(2, 3, 8, 8)),
    "cnn1": (cnn1, torch.randn(2, 3, 12, 12)),
    "cnn2": (cnn2, torch.randn(2, 3, 12, 12)),
}  # fmt: skip


def _described(
    model: nn.Module, example: Tensor, insertion: Insertion, before: Architecture | None = None
) -> Architecture:
    return describe(model, example, insertion, operations=["Widen"], before=before)


@pytest.mark.sweep("structures that widen")
@pytest.mark.parametrize("name", STRUCTURES)
def test_every_group_of_a_structure_widens_alike(name: str) -> None:
    build, example = STRUCTURES[name]
    model = build()
    with remembering(model, example):
        before = _described(model, example, Insertion.EXACT)
        assert [group.id for group in before.channel_groups] == [one.id for one in widening_groups(model, example)]
        widths = {group.id: group.width + 2 * group.multiple_of for group in before.channel_groups}
        grown = {group: widen(model, group, width, example, seed=1) for group, width in widths.items()}
    for group, width in widths.items():
        wider = grown[group]
        found = _described(wider, example, Insertion.EXACT)
        assert found == widened(before, group, width)
        assert found.channel_group(group).width == width
        assert found.parameters == sum(parameter.numel() for parameter in wider.parameters())
        assert found.depth == before.depth


@settings(max_examples=sweeps.examples(50), deadline=None)
@given(st.sampled_from(sorted(STRUCTURES)), st.sampled_from(list(Insertion)), st.data())
def test_growth_in_any_order_commutes(name: str, insertion: Insertion, data: st.DataObject) -> None:
    torch.manual_seed(0)
    build, example = STRUCTURES[name]
    model = build()
    described = start = _described(model, example, insertion)
    known = [group.id for group in described.channel_groups]
    for _ in range(data.draw(st.integers(1, 4), label="growths")):
        points = [("deepen", point.id) for point in described.growth_points]
        choices = points + [("widen", group) for group in known]
        if not choices:
            return
        kind, target = data.draw(st.sampled_from(choices))
        if kind == "deepen":
            model, described = deepen(model, target, example, insertion), deepened(described, target)
        else:
            group = described.channel_group(target)
            width = group.width + data.draw(st.integers(1, 2)) * group.multiple_of
            model, described = widen(model, target, width, example, seed=3), widened(described, target, width)
        found = _described(model, example, insertion, start)
        assert found == described
        # Groups and points are those of the starting model, whatever was grown.
        assert [group.id for group in found.channel_groups] == known
        assert Architecture.model_validate_json(found.model_dump_json(by_alias=True)) == found


@pytest.mark.sweep("torchvision models")
@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2"])
def test_networks_of_torchvision_commute(name: str) -> None:
    case = torchvision_case(name)
    model, example = case.model, case.example
    known = [group.id for group in widening_groups(model, example)][:3]
    point = growth_points(model, example)[1].id
    # As if three groups had been tried on values, all of which take their time.
    tried = Channels(groups=tuple(ChannelGroup(id=group, width=1, makers=(), carriers={}) for group in known))
    start = describe(model, example).model_copy(update={"channels": tried})
    described = describe(model, example, before=start)
    for target in known:
        width = described.channel_group(target).width + described.channel_group(target).multiple_of
        model, described = widen(model, target, width, example, seed=0), widened(described, target, width)
    model, described = deepen(model, point, example), deepened(described, point)
    assert describe(model, example, before=start) == described


def test_who_does_not_ask_gets_nothing() -> None:
    described = describe(digits(), torch.randn(2, 1, 8, 8))
    assert described.channels is None
    assert "channels" not in described.to_json()
    assert deepened(described, "block0").channels is None
    with pytest.raises(GrowthError, match="'block0.0' is not a widening group of this model; its groups: none"):
        widened(described, "block0.0", 12)


def test_a_width_that_cannot_be_is_refused_with_the_remedy() -> None:
    described = describe(MODELS["grouped"][0](), IMAGE, operations=["Widen"])
    with pytest.raises(GrowthError, match="'0' has 12 channels and cannot be widened to 13; give a multiple of 3 "):
        widened(described, "0", 13)
    with pytest.raises(GrowthError, match="'x' is not a widening group of this model; its groups: 0, 2"):
        widened(described, "x", 13)
