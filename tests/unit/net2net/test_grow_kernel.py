"""A kernel that grows keeps what the model computes, for every kind of convolution; what cannot grow is refused."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import pytest
import torch
from growth_cases import behaviour, relative_error, torchvision_case
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import ASGD, SGD, Adam, Optimizer, RMSprop

from espalier_trainer.net2net import (
    GrowthError,
    deepen,
    grow_kernel,
    grow_optimizer,
    growth_points,
    widen,
    widening_groups,
)

IMAGE = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(4))
CLASSES = {1: (nn.Conv1d, nn.BatchNorm1d), 2: (nn.Conv2d, nn.BatchNorm2d), 3: (nn.Conv3d, nn.BatchNorm3d)}


def _model(**changes: object) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 6, **{"kernel_size": 3, "padding": 1} | changes),  # type: ignore[arg-type]
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Conv2d(6, 2, 3),
    )


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_every_convolution_keeps_its_function(data: st.DataObject) -> None:
    dims = data.draw(st.integers(1, 3), label="dims")

    def each(least: int, most: int) -> st.SearchStrategy[tuple[int, ...]]:
        return st.tuples(*[st.integers(least, most)] * dims)

    kernel = data.draw(each(1, 4), label="kernel")
    larger = tuple(size + 2 * more for size, more in zip(kernel, data.draw(each(0, 2), label="more"), strict=True))
    dilation = data.draw(each(1, 2), label="dilation")
    groups = data.draw(st.sampled_from([1, 2, 4]), label="groups")
    stride = data.draw(each(1, 3), label="stride")
    padding = data.draw(each(0, 2) | st.just("valid") | (st.just("same") if set(stride) == {1} else st.nothing()))
    convolution, norm = CLASSES[dims]
    model = nn.Sequential(
        convolution(4, 8, kernel, stride, padding, dilation, groups, bias=data.draw(st.booleans())), norm(8), nn.SiLU()
    )
    example = torch.randn(3, 4, *[9 if dims < 3 else 7] * dims)
    if larger == kernel:
        with pytest.raises(GrowthError, match="cannot become"):
            grow_kernel(model, "0", larger, example)
        return
    state = copy.deepcopy(model.state_dict())
    grown = grow_kernel(model, "0", larger, example)
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert grown.get_parameter("0.weight").shape[2:] == larger
    before = behaviour(copy.deepcopy(model), example)
    for output, wanted in zip(behaviour(copy.deepcopy(grown), example).outputs, before.outputs, strict=True):
        assert relative_error(output, wanted) <= 1e-6
    # Behind a norm some gradients are 0 and their rounding is all there is: compared in double precision.
    wanted = behaviour(model.double(), example.double()).gradients["0.weight"]
    found = behaviour(grown.double(), example.double()).gradients["0.weight"]
    middle = tuple(slice((n - o) // 2, (n - o) // 2 + o) for n, o in zip(larger, kernel, strict=True))
    torch.testing.assert_close(found[:, :, *middle], wanted, rtol=1e-9, atol=1e-9)


def test_new_taps_learn_at_once() -> None:
    grown = grow_kernel(_model(), "0", 5, IMAGE)
    gradient = behaviour(grown, IMAGE).gradients["0.weight"]
    assert (gradient.abs().amax((0, 1)) > 0).all()


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2", "convnext_tiny", "regnet_y_400mf"])
def test_all_kernels_of_a_model_that_are_larger_than_one(name: str) -> None:
    case = torchvision_case(name)
    before = behaviour(copy.deepcopy(case.model), case.example)
    convolutions = {n: m for n, m in case.model.named_modules() if isinstance(m, nn.Conv2d) and m.kernel_size[0] > 1}
    grown = case.model
    for path, module in list(convolutions.items())[:: max(1, len(convolutions) // 4)]:
        grown = grow_kernel(grown, path, module.kernel_size[0] + 2, case.example)
    wanted = [output.double() for output in before.outputs[:1]]
    found = behaviour(grown, case.example).outputs[:1]
    assert all(relative_error(one.double(), other) <= 1e-6 for one, other in zip(found, wanted, strict=True))


def test_growths_of_all_kinds_follow_each_other() -> None:
    model = _model()
    grown = grow_kernel(deepen(model, "0", IMAGE), "0", 5, IMAGE)
    grown = widen(grown, widening_groups(grown, IMAGE)[0], 9, IMAGE, seed=0)
    grown = grow_kernel(grown, "2.grown.0.conv", (3, 5), IMAGE)
    grown = deepen(grown, growth_points(grown, IMAGE)[0].id, IMAGE)
    before = behaviour(model, IMAGE)
    for output, wanted in zip(behaviour(grown, IMAGE).outputs, before.outputs, strict=True):
        assert relative_error(output, wanted) <= 1e-6


def _train(model: nn.Module, optimizer: Optimizer, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        model(IMAGE).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("kind", [SGD, Adam, RMSprop])
def test_the_optimizer_goes_on(kind: type[Optimizer]) -> None:
    options = {SGD: {"momentum": 0.9}, Adam: {}, RMSprop: {"momentum": 0.5, "centered": True}}[kind]
    model = _model()
    optimizer = kind(model.parameters(), lr=0.01, **options)  # type: ignore[arg-type]
    _train(model, optimizer, 5)
    grown = grow_kernel(model, "0", 5, IMAGE)
    follower = grow_optimizer(optimizer, model, grown)
    before = grown.get_parameter("0.weight").detach().clone()
    _train(model, optimizer, 1)
    _train(grown, follower, 1)
    found = grown.get_parameter("0.weight").detach()
    # The old taps move as if nothing had happened, and all new ones move.
    torch.testing.assert_close(found[:, :, 1:4, 1:4], model.get_parameter("0.weight"), rtol=1e-4, atol=1e-6)
    moved = (found - before).abs()
    moved[:, :, 1:4, 1:4] = 1
    assert (moved > 0).all()


def test_after_many_steps_new_taps_begin_no_faster_than_others_move() -> None:
    """Adam divides by a mean of many steps: of the new taps it would know one, and go 3.2 times as far."""
    model = _model()
    optimizer = Adam(model.parameters(), lr=0.01)
    _train(model, optimizer, 5)
    for state in optimizer.state.values():
        state["exp_avg_sq"] /= 1 - 0.999**5  # as they are
        state["step"].fill_(10_000)
    grown = grow_kernel(model, "0", 5, IMAGE)
    before = grown.get_parameter("0.weight").detach().clone()
    _train(grown, grow_optimizer(optimizer, model, grown), 1)
    moved = (grown.get_parameter("0.weight").detach() - before).abs()
    moved[:, :, 1:4, 1:4] = 0
    assert 0 < moved.max() <= 0.01


def test_averaged_weights_of_new_taps_are_zero() -> None:
    model = _model()
    optimizer = ASGD(model.parameters(), lr=0.01, t0=0)
    _train(model, optimizer, 5)
    grown = grow_kernel(model, "0", 5, IMAGE)
    average = grow_optimizer(optimizer, model, grown).state[grown.get_parameter("0.weight")]["ax"]
    assert torch.equal(average[:, :, 1:4, 1:4], optimizer.state[model.get_parameter("0.weight")]["ax"])
    assert not average[:, :, 0].any()


def test_channels_last_stays_channels_last() -> None:
    model = _model().to(memory_format=torch.channels_last)
    weight = grow_kernel(model, "0", 5, IMAGE).get_parameter("0.weight")
    assert weight.is_contiguous(memory_format=torch.channels_last)


class _Reading(nn.Module):
    """A forward that looks at its convolution."""

    def __init__(self, *, weight: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self._weight = weight

    def forward(self, x: Tensor) -> Tensor:
        """Return the convolution with its weight's norm or its kernel's size beside it."""
        y = self.conv(x)
        return y / self.conv.weight.norm() if self._weight else y[:, :, : 2 * self.conv.kernel_size[0]]


def _tied() -> nn.Module:
    model = nn.Sequential(nn.Conv2d(3, 3, 3), nn.Conv2d(3, 3, 3))
    model[1].weight = model[0].weight
    return model


REFUSED: dict[str, tuple[nn.Module, str, int | Sequence[int], str]] = {
    "no module": (_model(), "9", 5, "there is no such module, expected a Conv1d.*the model's convolutions: 0, 3"),
    "no convolution": (_model(), "1", 5, "it is BatchNorm2d, expected"),
    "smaller": (_model(), "0", 1, r"'0' has size \(3, 3\) and cannot become \(1, 1\)"),
    "equal": (_model(), "0", 3, "cannot become"),
    "by an odd number": (_model(), "0", 4, "larger by an even number"),
    "too few sizes": (_model(), "0", (5,), "give 2 sizes"),
    "reflecting": (_model(padding_mode="reflect"), "0", 5, "pads by 'reflect'"),
    "weight norm": (
        nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 4, 3))), "0", 5, "is parametrized"
    ),
    "tied": (_tied(), "0", 5, "shares a parameter with '1'"),
    "weight read": (_Reading(weight=True), "conv", 5, "its weight is also read by 'norm'"),
    "size read": (_Reading(weight=False), "conv", 5, "let it not depend on the kernel's size"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_grow_is_refused_with_the_reason(name: str) -> None:
    model, layer, size, reason = REFUSED[name]
    with pytest.raises(GrowthError, match=reason):
        grow_kernel(model, layer, size, IMAGE)
