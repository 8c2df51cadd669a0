"""Widening keeps what a model computes, over every way in which channels are coupled; and refuses what it cannot."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial

import pytest
import torch
from growth_cases import behaviour, relative_error
from hypothesis import given, settings
from hypothesis import strategies as st
from residual_nets import Written
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations
from torchvision.ops import SqueezeExcitation

import sweeps
from espalier_trainer.net2net import (
    GrowthError,
    Widening,
    WideningGroup,
    deepen,
    refused_widenings,
    widen,
    widened,
    widening_groups,
)
from espalier_trainer.net2net.trace.tracing import trace, traces
from espalier_trainer.net2net.widening.groups import find_groups
from espalier_trainer.net2net.widening.trial import executes_alike

IMAGE = torch.randn(3, 3, 8, 8, generator=torch.Generator().manual_seed(4))


def _residual(m: nn.Module, x: Tensor) -> Tensor:
    x = m.stem(x)
    x = torch.relu(x + m.norm(m.body(x)))
    return m.head(x.mean((2, 3)))


def _concat(m: nn.Module, x: Tensor) -> Tensor:
    branches = torch.cat([m.one(x), x, torch.relu(m.two(x))], 1)
    return m.head(m.norm(branches))


def _flat(m: nn.Module, x: Tensor) -> Tensor:
    x = torch.relu(m.norm(m.conv(x)))
    return m.head(functional.max_pool2d(x, 2).view(x.shape[0], -1))


def _scaled(m: nn.Module, x: Tensor) -> Tensor:
    x = m.stem(x)
    inner = m.second(functional.gelu(m.first(m.depthwise(x).permute(0, 2, 3, 1)))).permute(0, 3, 1, 2)
    return m.head(x + m.layer_scale * inner)


def _twice(m: nn.Module, x: Tensor) -> Tensor:
    x = m.stem(x)
    return m.head(torch.relu(m.shared(torch.relu(m.shared(x)))) + x)


def _tied_model() -> nn.Module:
    model = Written(
        lambda m, x: m.head(torch.relu(m.two(torch.relu(m.one(m.stem(x)))))),
        stem=nn.Conv2d(3, 6, 1),
        one=nn.Conv2d(6, 6, 3, padding=1),
        two=nn.Conv2d(6, 6, 3, padding=1, bias=False),
        head=nn.Conv2d(6, 2, 1),
    )
    model.two.weight = model.one.weight
    return model


conv = partial(nn.Conv2d, kernel_size=3, padding=1)

MODELS: dict[str, tuple[Callable[[], nn.Module], dict[str, int]]] = {
    "plain": (lambda: nn.Sequential(conv(3, 6), nn.BatchNorm2d(6), nn.ReLU(), conv(6, 4)), {"0": 1}),
    "no bias": (lambda: nn.Sequential(conv(3, 6, bias=False), nn.GELU(), conv(6, 4, bias=False)), {"0": 1}),
    "prelu": (lambda: nn.Sequential(conv(3, 6), nn.PReLU(6), conv(6, 4), nn.PReLU(), conv(4, 2)), {"0": 1, "2": 1}),
    "residual": (
        lambda: Written(_residual, stem=conv(3, 6), body=conv(6, 6), norm=nn.BatchNorm2d(6), head=nn.Linear(6, 4)),
        {"stem": 1},
    ),
    "concat": (
        lambda: Written(_concat, one=conv(3, 4), two=conv(3, 5), norm=nn.BatchNorm2d(12), head=conv(12, 2)),
        {"one": 1, "two": 1},
    ),
    "grouped": (
        lambda: nn.Sequential(conv(3, 12), nn.ReLU(), conv(12, 6, groups=3), nn.BatchNorm2d(6), conv(6, 4, groups=2)),
        {"0": 3, "2": 6},
    ),
    "depthwise": (
        lambda: nn.Sequential(conv(3, 4), conv(4, 4, groups=4), nn.BatchNorm2d(4), nn.ReLU6(), conv(4, 2)),
        {"0": 1},
    ),
    "depthwise, twice the channels": (
        lambda: nn.Sequential(conv(3, 4), conv(4, 8, groups=4), nn.InstanceNorm2d(8, affine=True), conv(8, 2)),
        {"0": 1},
    ),
    "squeeze-excite": (
        lambda: nn.Sequential(conv(3, 6), SqueezeExcitation(6, 2), nn.AvgPool2d(2), conv(6, 2)),
        {"0": 1, "1.fc1": 1},
    ),
    "flatten": (
        lambda: nn.Sequential(conv(3, 4), nn.ReLU(), nn.Flatten(), nn.Linear(256, 5), nn.Tanh(), nn.Linear(5, 2)),
        {"0": 1, "3": 1},
    ),
    "view": (lambda: Written(_flat, conv=conv(3, 4), norm=nn.BatchNorm2d(4), head=nn.Linear(64, 3)), {"conv": 1}),
    "layer scale": (
        lambda: Written(
            _scaled, stem=conv(3, 6), depthwise=conv(6, 6, groups=6), first=nn.Linear(6, 9), second=nn.Linear(9, 6),
            layer_scale=nn.Parameter(torch.full((6, 1, 1), 0.1)), head=conv(6, 2),
        ),
        {"stem": 1, "first": 1},
    ),
    "shared module": (lambda: Written(_twice, stem=conv(3, 6), shared=conv(6, 6), head=conv(6, 2)), {"stem": 1}),
    "tied weight": (_tied_model, {"stem": 1}),
    "layer norm": (
        lambda: Written(
            lambda m, x: m.head(torch.tanh(m.norm(m.first(x.flatten(1))))),
            first=nn.Linear(192, 6), norm=nn.LayerNorm(6), head=nn.Linear(6, 2),
        ),
        {"first": 6},
    ),
    "group norm": (lambda: nn.Sequential(conv(3, 6), nn.GroupNorm(2, 6), nn.SiLU(), conv(6, 2)), {"0": 6}),
}  # fmt: skip
"""For each structure: a model, and of each group the number of which a new width must be a multiple."""


def _disturbed(model: nn.Module) -> nn.Module:
    """Return the model with every affine parameter and statistic different for each channel."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
        for buffer in model.buffers():
            if buffer.is_floating_point():
                buffer.add_(torch.rand_like(buffer))
    return model


def _assert_same(wider: nn.Module, model: nn.Module, example: Tensor) -> None:
    """Outputs in eval, in train, and again in eval mode with the statistics that the step left."""
    wanted = [*behaviour(copy.deepcopy(model), example).outputs]
    found = [*behaviour(copy.deepcopy(wider), example).outputs]
    for training in (True, False):
        for one, outputs in ((model, wanted), (wider, found)):
            with torch.no_grad():
                outputs.append(one.train(training)(example))
    for output, other in zip(found, wanted, strict=True):
        assert relative_error(output, other) <= 1e-6


@pytest.mark.parametrize("name", MODELS)
def test_the_groups_of_each_structure(name: str) -> None:
    build, wanted = MODELS[name]
    groups = widening_groups(build(), IMAGE)
    assert {group.id: group.multiple_of for group in groups} == wanted


@settings(max_examples=sweeps.examples(60), deadline=None)
@given(st.sampled_from(sorted(MODELS)), st.data())
def test_widening_to_any_width_keeps_the_function(name: str, data: st.DataObject) -> None:
    torch.manual_seed(data.draw(st.integers(0, 99), label="weights"))
    model = _disturbed(MODELS[name][0]())
    group: WideningGroup = data.draw(st.sampled_from(widening_groups(model, IMAGE)), label="group")
    steps = data.draw(st.integers(1, 6), label="steps")
    state = copy.deepcopy(model.state_dict())
    width = group.width + steps * group.multiple_of
    wider = widen(model, group, width, IMAGE, seed=data.draw(st.integers(0, 2**32), label="seed"))
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert [p for p, _ in wider.named_parameters()] == [p for p, _ in model.named_parameters()]
    again = {one.id: one for one in widening_groups(wider, IMAGE)}
    assert again[group.id].width == width
    _assert_same(wider, model, IMAGE)


@pytest.mark.parametrize("name", MODELS)
def test_all_groups_one_after_the_other(name: str) -> None:
    model = _disturbed(MODELS[name][0]())
    wider = model
    for group in MODELS[name][1]:
        found = next(one for one in widening_groups(wider, IMAGE) if one.id == group)
        wider = widen(wider, group, 2 * found.width, IMAGE, seed=1)
    _assert_same(wider, model, IMAGE)


def test_a_widening_is_the_same_for_the_same_seed() -> None:
    model = MODELS["concat"][0]()
    states = [widen(model, "two", 9, IMAGE, seed=seed).state_dict() for seed in (3, 3, 4)]
    assert all(torch.equal(value, states[1][key]) for key, value in states[0].items())
    assert any(not torch.equal(value, states[2][key]) for key, value in states[0].items())


def test_a_shared_module_and_a_tied_weight_stay_one() -> None:
    wider = widen(_tied_model(), "stem", 10, IMAGE, seed=0)
    assert wider.one.weight is wider.two.weight
    assert wider.one.weight.shape == (10, 10, 3, 3)


def test_widening_and_deepening_follow_each_other() -> None:
    model = _disturbed(nn.Sequential(conv(3, 6), nn.BatchNorm2d(6), nn.ReLU(), conv(6, 4), nn.SiLU(), conv(4, 2)))
    grown = deepen(deepen(model, "0", IMAGE), "3", IMAGE)
    for group in ("0", "2.grown.0.conv", "3"):
        grown = widen(grown, group, 9, IMAGE, seed=0)
    assert {group.id: group.width for group in widening_groups(grown, IMAGE)}["0"] == 9
    grown = deepen(grown, "0", IMAGE)
    _assert_same(grown, model, IMAGE)


def test_channels_last_stays_channels_last() -> None:
    model = MODELS["plain"][0]().to(memory_format=torch.channels_last)
    weight = widen(model, "0", 9, IMAGE, seed=0).get_parameter("3.weight")
    assert weight.is_contiguous(memory_format=torch.channels_last)


def _by_count(m: nn.Module, x: Tensor) -> Tensor:
    x = m.stem(x)
    return m.head(x / x.shape[1])


def _by_new_number(m: nn.Module, x: Tensor) -> Tensor:
    x = m.stem(x)
    return m.head(x * torch.full((1,), 1 / x.shape[1]))


def _by_a_weight(reduced: Callable[[Tensor], Tensor], m: nn.Module, x: Tensor) -> Tensor:
    return m.head(m.stem(x)) * reduced(m.stem.weight)


def _chunked(m: nn.Module, x: Tensor) -> Tensor:
    one, two = m.stem(x).chunk(2, 1)
    return m.head(one * two)


def _shuffled(m: nn.Module, x: Tensor) -> Tensor:
    one, two = x.repeat(1, 2, 1, 1).chunk(2, 1)
    return m.head(torch.cat([one, m.stem(two)], 1))


def _viewed_as_the_other(m: nn.Module, x: Tensor) -> Tensor:
    one, two = m.one(x), m.two(x)
    return m.head(one.view_as(two)) + m.other(two)


def _scaled_by_the_other(m: nn.Module, x: Tensor) -> Tensor:
    one, two = m.one(x), m.two(x)
    return m.head(one * (two.shape[1] / one.shape[1])) + m.other(two)


def _branches(forward: Callable[..., Tensor]) -> nn.Module:
    return Written(forward, one=conv(3, 6), two=conv(3, 6), head=conv(6, 2), other=conv(6, 2))


JOINT: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "view as another": (lambda: _branches(_viewed_as_the_other), "forward fails with more channels"),
    "scaled by another's width": (lambda: _branches(_scaled_by_the_other), "computes something else"),
}


@pytest.mark.parametrize("name", JOINT)
def test_what_works_only_together_with_another_group_is_not_offered(name: str) -> None:
    build, reason = JOINT[name]
    model = build()
    for group in widening_groups(model, IMAGE):
        _assert_same(widened(model, Widening(group, group.replication(2 * group.width, 0))), model, IMAGE)
    with pytest.raises(GrowthError, match=f"'one' cannot be widened: .*{reason}"):
        widen(model, "one", 12, IMAGE, seed=0)
    assert "one" in refused_widenings(model, IMAGE)


def _features_of_the_width(m: nn.Module, x: Tensor) -> Tensor:
    x = m.stem(x)
    return m.head(x) if m.training else m.head(x) / x.shape[1]


def test_a_group_that_counts_in_eval_mode_only_is_refused_by_its_id_too() -> None:
    model = Written(_features_of_the_width, stem=conv(3, 6), head=conv(6, 2))
    assert widening_groups(model, IMAGE) == ()
    with pytest.raises(GrowthError, match="'stem' cannot be widened: .*computes something else"):
        widen(model, "stem", 12, IMAGE, seed=0)


REFUSED: dict[str, tuple[nn.Module, str, str]] = {
    "divides by the number": (Written(_by_count, stem=conv(3, 6), head=conv(6, 2)), "stem", "computes something else"),
    "multiplies by a new number": (
        Written(_by_new_number, stem=conv(3, 6), head=conv(6, 2)), "stem", "computes something else"
    ),
    "norm of a weight": (
        Written(partial(_by_a_weight, torch.linalg.vector_norm), stem=conv(3, 6), head=conv(6, 2)),
        "stem",
        "computes something else",
    ),
    "mean of a weight": (
        Written(partial(_by_a_weight, torch.mean), stem=conv(3, 6), head=conv(6, 2)), "stem", "computes something else"
    ),
    "number in the forward": (
        Written(lambda m, x: m.head(m.stem(x).view(-1, 6 * 64)), stem=conv(3, 6), head=nn.Linear(384, 2)),
        "stem",
        "forward fails with more channels",
    ),
    "halves": (Written(_chunked, stem=conv(3, 6), head=conv(3, 2)), "stem", r"'chunk' \(Chunk\) reads it"),
    "beside a half": (
        Written(_shuffled, stem=conv(3, 6), head=conv(9, 2)), "stem", "concatenates it with one of several results"
    ),
    "joint norm": (
        Written(
            lambda m, x: m.head(m.norm(torch.cat([m.stem(x), m.other(x)], 1))),
            stem=conv(3, 6), other=conv(3, 2), norm=nn.GroupNorm(2, 8), head=conv(8, 2),
        ),
        "other",
        r"'norm' \(GroupNorm\) takes one mean over several groups",
    ),
    "input": (
        Written(lambda m, x: m.head(m.stem(x) + x), stem=conv(3, 3), head=conv(3, 2)),
        "stem",
        "combines it with 'x', whose width is fixed",
    ),
    "output": (MODELS["plain"][0](), "3", "an output of the model"),
    "follower": (MODELS["depthwise"][0](), "1", "changes together with '0'"),
    "depthwise on what is fixed": (
        nn.Sequential(conv(3, 3, groups=3), conv(3, 4), conv(4, 2)), "0", "its channels are those of its input"
    ),
    "member": (MODELS["residual"][0](), "body", "changes together with 'stem'"),
    "unknown": (MODELS["plain"][0](), "9", "not a widening group of this model; its groups: 0"),
    "weight norm": (
        nn.Sequential(parametrizations.weight_norm(conv(3, 6)), conv(6, 4), conv(4, 2)), "0", "is parametrized"
    ),
    "embedding": (nn.Sequential(conv(3, 6), nn.Softmax(1), conv(6, 2)), "0", r"\(Softmax\) reads it"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_widened_is_refused_with_the_reason(name: str) -> None:
    model, group, reason = REFUSED[name]
    with pytest.raises(GrowthError, match=reason):
        widen(model, group, 12, IMAGE, seed=0)
    assert group not in [one.id for one in widening_groups(model, IMAGE)]


def _alike(model: nn.Module, group_id: str) -> bool:
    graph = trace(model, IMAGE)
    groups = find_groups(model, graph)
    widening = Widening(groups.get(group_id), groups.get(group_id).replication(2 * groups.get(group_id).width, 0))
    return executes_alike(
        widened(model, widening), traces(model, IMAGE), groups, {widening.group: widening.replication}, IMAGE
    )


@pytest.mark.parametrize("name", MODELS)
def test_what_calls_the_same_functions_needs_no_trial_on_values(name: str) -> None:
    model = MODELS[name][0]()
    assert all(_alike(model, group) for group in MODELS[name][1])


@pytest.mark.parametrize(
    "name",
    [
        *("divides by the number", "number in the forward", "multiplies by a new number"),
        *("norm of a weight", "mean of a weight"),
    ],
)
def test_what_reads_the_number_or_the_copies_of_channels_is_tried_on_values(name: str) -> None:
    model, group, _ = REFUSED[name]
    assert not _alike(model, group)


def test_refusals_are_listed() -> None:
    model, _, _ = REFUSED["divides by the number"]
    refused = refused_widenings(model, IMAGE)
    assert set(refused) == {"stem", "head"}
    assert "relative difference" in refused["stem"].reason


def test_widths_are_checked() -> None:
    with pytest.raises(GrowthError, match="'0' has 6 channels and cannot be widened to 6; give a multiple of 1 above"):
        widen(MODELS["plain"][0](), "0", 6, IMAGE, seed=0)
    with pytest.raises(GrowthError, match=r"widened to 14; give a multiple of 3 above 12 \(because of groups"):
        widen(MODELS["grouped"][0](), "0", 14, IMAGE, seed=0)
    with pytest.raises(GrowthError, match="because of a norm over its channels"):
        widen(MODELS["layer norm"][0](), "first", 9, IMAGE, seed=0)


def test_a_group_of_another_model_is_refused() -> None:
    model = MODELS["plain"][0]()
    (group,) = widening_groups(model, IMAGE)
    with pytest.raises(GrowthError, match="'0.weight' has 9 entries along dimension 0, and its group was found for 6"):
        widen(widen(model, group, 9, IMAGE, seed=0), group, 12, IMAGE, seed=0)
    with pytest.raises(GrowthError, match="the model has no"):
        widen(nn.Sequential(nn.ReLU()), group, 9, IMAGE, seed=0)


def test_dropout_is_no_hindrance() -> None:
    model = nn.Sequential(conv(3, 6), nn.Dropout(0.5), nn.ReLU(), conv(6, 2))
    assert [group.id for group in widening_groups(model, IMAGE)] == ["0"]


@pytest.mark.parametrize("norm", [parametrizations.weight_norm, parametrizations.spectral_norm])
def test_a_layer_whose_weight_is_parametrized_has_a_reason(norm):
    model = nn.Sequential(norm(nn.Linear(4, 4)), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), norm(nn.Linear(4, 2)))
    refused = refused_widenings(model, torch.randn(2, 4))
    assert not widening_groups(model, torch.randn(2, 4))
    assert {name: one.reason for name, one in refused.items() if name != "2"} == {
        name: f"the weight of '{name}' is parametrized (weight or spectral norm)" for name in ("0", "4")
    }
    assert refused["0"].remedy == "remove the parametrization before growth"
    assert "2" in refused
