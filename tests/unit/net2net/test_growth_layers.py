"""Growth of every kind of layer, activation and way of writing a forward; what the copy keeps of the model."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from growth_cases import assert_learns, assert_same_behaviour, behaviour, relative_error
from torch import Tensor, nn
from torch.nn import functional

from espalier_core.growth.deepen import deepened
from espalier_core.types.job import Insertion
from espalier_trainer.net2net import DeepenBlock, deepen, growth_points
from espalier_trainer.net2net.description import describe
from espalier_trainer.net2net.modules import remembering

_IMAGES = torch.randn(3, 4, 9, 7, generator=torch.Generator().manual_seed(3))

LAYERS = {
    "linear": (nn.Linear(6, 5), (3, 6)),
    "linear on sequences": (nn.Linear(6, 5), (3, 4, 6)),
    "3x3": (nn.Conv2d(4, 6, 3, padding=1), (3, 4, 9, 7)),
    "not padded, strided": (nn.Conv2d(4, 6, 3, stride=2), (3, 4, 9, 7)),
    "not square": (nn.Conv2d(4, 6, (1, 5), padding="same"), (3, 4, 9, 7)),
    "same": (nn.Conv2d(4, 6, 5, padding="same"), (3, 4, 9, 7)),
    "kernel 2": (nn.Conv2d(4, 6, 2), (3, 4, 9, 7)),
    "kernel 4, dilated": (nn.Conv2d(4, 6, 4, dilation=2), (3, 4, 9, 7)),
    "kernel 2x3": (nn.Conv2d(4, 6, (2, 3), dilation=(3, 2)), (3, 4, 9, 7)),
    "dilated": (nn.Conv2d(4, 6, 3, dilation=2, padding=2), (3, 4, 9, 7)),
    "grouped": (nn.Conv2d(4, 6, 3, groups=2), (3, 4, 9, 7)),
    "depthwise": (nn.Conv2d(4, 4, 3, groups=4), (3, 4, 9, 7)),
    "depthwise, multiplied": (nn.Conv2d(4, 8, 3, groups=4), (3, 4, 9, 7)),
    "reflecting": (nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect"), (3, 4, 9, 7)),
    "circular, even": (nn.Conv2d(4, 6, 4, padding=1, padding_mode="circular"), (3, 4, 9, 7)),
    "replicating": (nn.Conv2d(4, 6, 5, padding=1, padding_mode="replicate"), (3, 4, 9, 7)),
    "map smaller than the padding": (nn.Conv2d(4, 6, (9, 7), padding_mode="reflect"), (3, 4, 9, 7)),
    "without bias": (nn.Conv2d(4, 6, 3, bias=False), (3, 4, 9, 7)),
    "1d": (nn.Conv1d(4, 6, 3), (3, 4, 9)),
    "1d, even": (nn.Conv1d(4, 6, 4), (3, 4, 9)),
    "3d": (nn.Conv3d(2, 3, 3), (3, 2, 5, 4, 6)),
    "3d, even": (nn.Conv3d(2, 3, 2), (3, 2, 5, 4, 6)),
}

ACTIVATIONS = [
    nn.ReLU(), nn.ReLU(inplace=True), nn.ReLU6(), nn.Hardtanh(-0.5, 0.7), nn.GELU(), nn.GELU(approximate="tanh"),
    nn.SiLU(inplace=True), nn.Hardswish(), nn.Tanh(), nn.LeakyReLU(0.2), nn.PReLU(), nn.PReLU(6), nn.ELU(0.7),
    nn.CELU(), nn.SELU(), nn.Mish(), nn.Softsign(), nn.Sigmoid(), nn.Hardsigmoid(), nn.Softplus(2), nn.LogSigmoid(),
]  # fmt: skip


def _check(model: nn.Module, example: Tensor, *, kind: Insertion = Insertion.EXACT, exact: bool = True) -> nn.Module:
    """Grow at every point, twice; compare behaviour and description; return the model grown everywhere."""
    before = behaviour(copy.deepcopy(model), example)
    with remembering(model, example):
        described = describe(model, example, kind)
        points = growth_points(model, example, kind)
        assert points
        assert list(described.growth_points) == points
        grown = {point.id: deepen(model, point.id, example, kind) for point in points}
    everywhere = model
    for point in points:
        once = grown[point.id]
        with remembering(once, example):
            assert describe(once, example, kind) == deepened(described, point.id)
            twice = deepen(once, point.id, example, kind)
        assert describe(twice, example, kind) == deepened(deepened(described, point.id), point.id)
        everywhere = once if everywhere is model else deepen(everywhere, point.id, example, kind)
        if exact:
            for one in (once, twice):
                found = assert_same_behaviour(copy.deepcopy(one), before, example, point.id)
                assert_learns(found, point.block, point.id)
    return everywhere


@pytest.mark.sweep("layers and activations")
@pytest.mark.parametrize("case", LAYERS)
@pytest.mark.parametrize("activation", [nn.ReLU(), nn.SiLU()], ids=["plain", "residual"])
def test_layers(case: str, activation: nn.Module) -> None:
    layer, shape = LAYERS[case]
    _check(nn.Sequential(layer, copy.deepcopy(activation)), torch.randn(shape))


@pytest.mark.sweep("layers and activations")
@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
@pytest.mark.parametrize("norm", [True, False], ids=["norm", "bare"])
def test_activations(activation: nn.Module, norm: bool) -> None:
    between = [nn.BatchNorm2d(6)] if norm else []
    model = nn.Sequential(nn.Conv2d(4, 6, 3), *between, copy.deepcopy(activation), nn.Conv2d(6, 2, 1))
    _check(model, _IMAGES)


class Functional(nn.Module):
    """The tutorial's way: functional activations, and a pooling module called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(4, 6, 3)
        self.conv2 = nn.Conv2d(6, 8, 2)
        self.pool = nn.MaxPool2d(2, padding=1)
        self.fc1 = nn.Linear(32, 10)
        self.fc2 = nn.Linear(10, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(functional.relu(self.conv1(x)))
        x = self.pool(functional.gelu(self.conv2(x)))
        x = torch.sigmoid(self.fc1(torch.flatten(x, 1)))
        return self.fc2(x)


def test_functional_activations_are_grown_before() -> None:
    model = Functional()
    grown = _check(model, _IMAGES)
    assert [point.after for point in growth_points(model, _IMAGES)] == ["conv1", "conv2", "fc1"]
    assert "conv1.grown.0.conv.weight" in grown.state_dict()


class SharedActivation(nn.Module):
    """torchvision's way: one ReLU for a whole block, and a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(4, 4, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(4)
        self.conv2 = nn.Conv2d(4, 4, 3, padding=1)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv2(self.relu(self.bn1(self.conv1(x))))
        out += x
        return self.relu(out)


def test_shared_activation_is_grown_at_its_input_or_at_the_block() -> None:
    model = nn.Sequential(SharedActivation(), nn.Conv2d(4, 2, 1))
    grown = _check(model, _IMAGES)
    assert [point.block for point in growth_points(model, _IMAGES)] == ["0.bn1.grown", "0.grown"]
    assert type(grown.get_submodule("0")).__name__ == "GrownSharedActivation"


@pytest.mark.sweep("layers and activations")
@pytest.mark.parametrize("activation", [nn.ReLU(), nn.GELU(), nn.Sigmoid()], ids=str)
@pytest.mark.parametrize("kind", list(Insertion))
def test_marked_blocks(activation: nn.Module, kind: Insertion) -> None:
    model = nn.Sequential(
        DeepenBlock(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6), copy.deepcopy(activation)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(6, 8),
        nn.ReLU(),
        DeepenBlock(nn.Linear(8, 8), copy.deepcopy(activation)),
    )
    assert [point.id for point in growth_points(model, _IMAGES)] == ["0", "5"]
    grown = _check(model, _IMAGES, kind=kind, exact=not kind.normed)
    assert ("0.grown.0.norm.weight" in grown.state_dict()) == (
        kind.normed and isinstance(activation, nn.ReLU | nn.GELU)
    ) or "0.1.grown.0.norm.weight" in grown.state_dict()


@pytest.mark.parametrize("kind", list(Insertion))
def test_every_insertion_is_exact_in_eval_mode(kind: Insertion) -> None:
    model = nn.Sequential(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 2, 1))
    model(_IMAGES)  # running statistics that are not the initial ones
    grown = deepen(model, "0", _IMAGES, kind)
    assert ("2.grown.0.norm.weight" in grown.state_dict()) == (kind.normed)
    with torch.no_grad():
        assert relative_error(grown.eval()(_IMAGES), model.eval()(_IMAGES)) <= 1e-6
        error = relative_error(grown.train()(_IMAGES), model.train()(_IMAGES))
    bounds = {
        Insertion.EXACT: (0, 1e-6),
        Insertion.SCALED: (0, 1e-6),
        Insertion.UNFOLD: (0, 1e-6),
        Insertion.CALIBRATED_BATCH_NORM: (0, 1e-5),
        Insertion.IDENTITY_BATCH_NORM: (1e-2, 1e2),
    }
    assert bounds[kind][0] <= error <= bounds[kind][1]


def test_the_argument_is_left_as_it_was() -> None:
    model = nn.Sequential(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6), nn.ReLU())
    model[1].eval()
    before, text, random = copy.deepcopy(model.state_dict()), repr(model), torch.get_rng_state()
    for kind in Insertion:
        deepen(model, "0", _IMAGES, kind)
    assert repr(model) == text
    assert [module.training for module in model.modules()] == [True, True, False, True]
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_the_copy_is_an_ordinary_module() -> None:
    model = nn.Sequential(nn.Conv2d(4, 6, 3), nn.ReLU(), nn.Conv2d(6, 2, 1))
    grown = deepen(model, "0", _IMAGES)
    assert set(grown.state_dict()) - set(model.state_dict()) == {"1.grown.0.conv.weight", "1.grown.0.conv.bias"}
    assert isinstance(grown[1], nn.ReLU)
    wanted = model(_IMAGES)
    for other in (copy.deepcopy(grown), pickle.loads(pickle.dumps(grown)), torch.compile(grown, backend="eager")):
        assert torch.equal(other(_IMAGES), wanted)
    assert torch.equal(grown.double()(_IMAGES.double()).float(), model.double()(_IMAGES.double()).float())


def test_type_layout_and_mode_are_kept() -> None:
    model = nn.Sequential(nn.Conv2d(4, 6, 3), nn.ReLU()).to(torch.bfloat16, memory_format=torch.channels_last).eval()
    images = _IMAGES.to(torch.bfloat16, memory_format=torch.channels_last)
    grown = deepen(model, "0", images)
    new = grown.get_submodule("1.grown.0.conv")
    assert new.weight.dtype == torch.bfloat16
    assert new.weight.is_contiguous(memory_format=torch.channels_last)
    assert not new.training
    assert torch.equal(grown(images), model(images))


def test_a_batch_of_one_is_enough() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU())
    assert [point.id for point in growth_points(model, torch.randn(1, 4))] == ["0"]


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_growth_on_the_device() -> None:
    torch.backends.cudnn.allow_tf32 = False
    model = nn.Sequential(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 2, 1)).cuda()
    images = _IMAGES.cuda()
    for kind in Insertion:
        grown = deepen(model, "0", images, kind)
        assert {parameter.device for parameter in grown.parameters()} == {images.device}
        with torch.no_grad():
            assert relative_error(grown.eval()(images), copy.deepcopy(model).eval()(images)) <= 1e-6


class TwoNames(nn.Module):
    """Holds one block under two names and calls it by the second."""

    def __init__(self) -> None:
        super().__init__()
        block = DeepenBlock(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU())
        self.first = block
        self.second = block

    def forward(self, x: Tensor) -> Tensor:
        return self.second(x)


@pytest.mark.parametrize("kind", list(Insertion))
def test_a_module_with_two_names_keeps_its_tensors(kind: Insertion) -> None:
    model = TwoNames()
    example = torch.randn(5, 4)
    parameters = [*model.parameters(), *model.buffers()]
    before = copy.deepcopy(model.state_dict())
    grown = deepen(model, "first", example, kind)
    assert all(one is other for one, other in zip([*model.parameters(), *model.buffers()], parameters, strict=True))
    assert all(torch.equal(value, grown.state_dict()[name]) for name, value in before.items())
    torch.testing.assert_close(grown.eval()(example), model.eval()(example), rtol=1e-6, atol=1e-6)


@pytest.mark.filterwarnings("ignore:.*weight_norm.*is deprecated:FutureWarning")
def test_a_model_with_a_computed_weight_is_copied() -> None:
    model = nn.Sequential(nn.utils.weight_norm(nn.Linear(4, 4)), nn.ReLU(), nn.Linear(4, 4), nn.ReLU())
    example = torch.randn(5, 4)
    wanted = model(example)
    assert [point.id for point in growth_points(model, example)] == ["2"]
    assert torch.equal(deepen(model, "2", example)(example), wanted)
