"""Layers, norms and activations that are classes of the user's: each is one layer, one norm, one activation."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from growth_cases import behaviour
from torch import Tensor, nn
from torch.nn import functional

from espalier_core.growth.deepen import deepened
from espalier_core.types.advice import Action
from espalier_trainer.net2net import (
    deepen,
    growth_points,
    refused_deepenings,
    refused_widenings,
    widen,
    widening_groups,
)
from espalier_trainer.net2net.description import describe
from own_layers import Transposed


class NormAct(nn.BatchNorm2d):
    """Calls batch norm as a function and holds the activation, as timm's `BatchNormAct2d` does."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.act = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        if self.training and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        normed = functional.batch_norm(
            x,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            self.training,
            self.momentum or 0.1,
            self.eps,
        )
        return self.act(normed)


class Frozen(nn.Module):
    """A batch norm of buffers, as torchvision's `FrozenBatchNorm2d`."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        for name, value in (("weight", 1.5), ("bias", 0.1), ("mean", 0.2), ("var", 2.0)):
            self.register_buffer(name, torch.full((channels,), value))

    def forward(self, x: Tensor) -> Tensor:
        scale = self.weight.reshape(1, -1, 1, 1) * (self.var.reshape(1, -1, 1, 1) + 1e-5).rsqrt()
        return x * scale + (self.bias.reshape(1, -1, 1, 1) - self.mean.reshape(1, -1, 1, 1) * scale)


class Same(nn.Conv2d):
    """Pads as TensorFlow does."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.conv2d(functional.pad(x, (0, 1, 0, 1)), self.weight, self.bias)


class Standardised(nn.Conv2d):
    """A convolution by a weight of mean 0 and variance 1."""

    def forward(self, x: Tensor) -> Tensor:
        weight = functional.batch_norm(
            self.weight.reshape(1, self.out_channels, -1), None, None, training=True, momentum=0.0
        ).reshape_as(self.weight)
        return functional.conv2d(x, weight, self.bias, padding=1)


class OwnGELU(nn.Module):
    """The approximation by a tangent, written out."""

    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * x * (1.0 + torch.tanh(0.7978845608 * (x + 0.044715 * torch.pow(x, 3.0))))


class Squared(nn.Module):
    """A squared ReLU."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(x).square()


class Gate(nn.Module):
    """A factor for each channel of each example."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layer = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.layer(x.mean((2, 3), keepdim=True)).sigmoid()


def _of_maps(*layers: nn.Module) -> Callable[[], tuple[nn.Module, Tensor]]:
    return lambda: (nn.Sequential(*copy.deepcopy(layers), nn.Conv2d(4, 2, 1)), torch.randn(3, 3, 6, 6))


def _of_rows(*layers: nn.Module) -> Callable[[], tuple[nn.Module, Tensor]]:
    return lambda: (nn.Sequential(*copy.deepcopy(layers), nn.Linear(8, 2)), torch.randn(3, 5, 4))


CASES: dict[str, tuple[Callable[[], tuple[nn.Module, Tensor]], str]] = {
    "norm with activation": (_of_maps(nn.Conv2d(3, 4, 3, padding=1, bias=False), NormAct(4)), "0"),
    "frozen norm": (_of_maps(nn.Conv2d(3, 4, 3, padding=1), Frozen(4), nn.ReLU()), "0"),
    "padded as TensorFlow's": (_of_maps(Same(3, 4, 2), nn.BatchNorm2d(4), nn.SiLU()), "0"),
    "standardised weight": (_of_maps(Standardised(3, 4, 3, padding=1), nn.ReLU()), "0"),
    "gate": (_of_maps(nn.Conv2d(3, 4, 1), Gate(4), nn.ReLU()), "0"),
    "transposed": (_of_rows(Transposed(4, 8), nn.GELU()), "0"),
    "own activation": (_of_rows(nn.Linear(4, 8), OwnGELU()), "0"),
    "both": (_of_rows(Transposed(4, 8), OwnGELU()), "0"),
    "squared": (_of_rows(nn.Linear(4, 8), Squared()), "0"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_layer_of_an_own_class_is_deepened_exactly_and_again(name: str) -> None:
    torch.manual_seed(0)
    build, wanted = CASES[name]
    model, example = build()
    assert wanted in [point.id for point in growth_points(model, example)]
    for _ in range(2):
        described = describe(model, example)
        grown = deepen(model, wanted, example)
        assert describe(grown, example, before=described) == deepened(described, wanted)
        before, after = behaviour(copy.deepcopy(model), example), behaviour(copy.deepcopy(grown), example)
        for one, other in zip(before.outputs, after.outputs, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
        assert set(before.buffers) <= set(after.buffers)
        model = grown


def test_channels_are_followed_through_a_norm_that_is_called_as_a_function() -> None:
    torch.manual_seed(0)
    model, example = CASES["norm with activation"][0]()
    group = next(one for one in widening_groups(model, example) if one.id == "0")
    assert {"1"} <= set(group.followers)
    wider = widen(model, "0", 8, example, seed=1)
    before, after = behaviour(copy.deepcopy(model), example), behaviour(copy.deepcopy(wider), example)
    for one, other in zip(before.outputs, after.outputs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    described = describe(model, example, operations=["Widen"])
    assert describe(wider, example, before=described) == Action.widen("0", 8).carried_out(described)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_model_of_another_type_has_the_same_growth_points(dtype: torch.dtype) -> None:
    model, example = CASES["norm with activation"][0]()
    wanted = [point.id for point in growth_points(model, example)]
    model, example = model.to(dtype), example.to(dtype)
    assert [point.id for point in growth_points(model, example)] == wanted
    grown = deepen(model, "0", example)
    assert torch.equal(grown(example), copy.deepcopy(model)(example))


def test_refusals_of_layers_and_of_channels_say_why_where_and_what_would_help() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), Gate(4), nn.Conv2d(4, 2, 1))
    for refused in (
        refused_deepenings(model, torch.randn(2, 3, 4, 4)),
        refused_widenings(model, torch.randn(2, 3, 4, 4)),
    ):
        assert "2" in refused
        for path, one in refused.items():
            assert one.layer == path
            assert one.reason
            assert one.remedy
        assert all(one.file == __file__ and one.line > 1 for path, one in refused.items() if path.startswith("1."))


class Masked(nn.Module):
    """Skips the mask where there is nothing to mask, as the attention of transformers does."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.act, self.last = nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        if not bool(mask.all()):
            x = x * mask[..., None]
        return self.last(self.act(self.first(x)))


@pytest.mark.parametrize("masked", [True, False])
def test_a_mask_may_decide_what_is_executed(masked: bool) -> None:
    torch.manual_seed(0)
    model, mask = Masked(), torch.ones(2, 5, dtype=torch.bool)
    mask[0, 2:] = not masked
    example = {"x": torch.randn(2, 5, 4), "mask": mask}
    assert [point.id for point in growth_points(model, example)] == ["first"]
    grown = deepen(model, "first", example)
    wider = widen(model, "first", 16, example, seed=1)
    for one in (mask, ~mask):
        torch.testing.assert_close(grown(example["x"], one), model(example["x"], one))
        torch.testing.assert_close(wider(example["x"], one), model(example["x"], one))
