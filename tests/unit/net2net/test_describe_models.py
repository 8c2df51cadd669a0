"""What a description says about a model: names, edges, functional operations, parameters."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from espalier_trainer.net2net.deepening.insertion import identity_kernel_, padding_sides, tap_index
from espalier_trainer.net2net.description import describe
from espalier_trainer.net2net.trace.operators import snake_case


class Mixed(nn.Module):
    """Functional operations, a parameter of its own, a shared module, a frozen layer, a loop, two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.act = nn.ReLU()
        self.scale = nn.Parameter(torch.ones(4, 1, 1))
        self.frozen = nn.Linear(8, 2).requires_grad_(False)
        self.tail = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])

    def forward(self, x: Tensor, *, side: Tensor) -> dict[str, Tensor]:
        """Return two tensors by name."""
        x = self.act(self.conv(x)) * self.scale
        x = self.act(x)
        pooled = torch.cat([functional.adaptive_avg_pool2d(x, 1), side], dim=1)
        out = self.frozen(pooled.flatten(1))
        for layer in self.tail:
            out = out + layer(out)
        return {"features": x, "logits": out}


def test_names_edges_and_parameters() -> None:
    model = Mixed()
    inputs = {"x": torch.randn(2, 3, 5, 5), "side": torch.randn(2, 4, 1, 1)}
    described = describe(model, inputs)
    assert [(layer.name, layer.operator, layer.inputs, layer.parameters) for layer in described.layers] == [
        ("x", "Input", (), 0),
        ("side", "Input", (), 0),
        ("conv", "Conv2d", ("x",), 112),
        ("act", "ReLU", ("conv",), 0),
        ("scale", "Parameter", (), 4),
        ("mul", "Mul", ("act", "scale"), 0),
        ("act:1", "ReLU", ("mul",), 0),
        ("adaptive_avg_pool2d", "AdaptiveAvgPool2d", ("act:1",), 0),
        ("concat", "Concat", ("adaptive_avg_pool2d", "side"), 0),
        ("flatten", "Flatten", ("concat",), 0),
        ("frozen", "Linear", ("flatten",), 0),
        ("tail.0", "Linear", ("frozen",), 6),
        ("add", "Add", ("frozen", "tail.0"), 0),
        ("tail.1", "Linear", ("add",), 6),
        ("add_1", "Add", ("add", "tail.1"), 0),
    ]
    assert described.outputs == ("act:1", "add_1")
    assert described.depth == 4
    assert described.layers[7].attributes == {"output_size": 1}
    assert described.layers[9].attributes == {"start_dim": 1, "end_dim": -1}
    assert described.layers[2].attributes["kernel_size"] == (3, 3)


def test_a_function_is_described_like_its_module() -> None:
    class Function(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return functional.leaky_relu(x, 0.3)

    example = torch.randn(2, 3)
    function = describe(Function(), example).layers[-1]
    module = describe(nn.Sequential(nn.LeakyReLU(0.3)), example).layers[-1]
    assert (function.operator, function.attributes) == (module.operator, module.attributes)


@torch.library.custom_op("espaliertests::relu", mutates_args=())
def _foreign_relu(x: Tensor) -> Tensor:
    return -x


@_foreign_relu.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def test_an_operation_of_another_library_is_not_taken_for_the_one_of_torch_with_its_name() -> None:
    class Foreign(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            x = _foreign_relu(functional.relu(x))
            return torch.ops.aten.relu(torch.ops.espaliertests.relu(x))

    found = [one.operator for one in describe(Foreign(), torch.ones(2, 3)).layers]
    assert found == ["Input", "ReLU", "EspaliertestsRelu", "EspaliertestsRelu", "ReLU"]


def test_the_batch_size_is_no_part_of_the_description() -> None:
    class Views(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.view(x.size(0), -1).reshape(len(x), 2, -1).expand(len(x), 2, 6)

    assert describe(Views(), torch.randn(2, 12)) == describe(Views(), torch.randn(5, 12))


def test_the_mode_is_no_part_of_the_description() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.ReLU())
    assert describe(model.train(), torch.randn(2, 4)) == describe(model.eval(), torch.randn(2, 4))


@pytest.mark.parametrize(
    ("operator", "name"),
    [("AdaptiveAvgPool2d", "adaptive_avg_pool2d"), ("ReLU", "relu"), ("LeakyReLU", "leaky_relu"), ("SiLU", "silu")],
)
def test_functions_are_named_as_torch_names_them(operator: str, name: str) -> None:
    assert snake_case(operator) == name


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("groups", [1, 2, 6])
def test_an_identity_kernel_returns_its_input(size: int, groups: int, dtype: torch.dtype) -> None:
    kernel = torch.full((6, 6 // groups, size, size), torch.nan, dtype=dtype)
    taps = (tap_index(size), size - 1)
    identity_kernel_(kernel, taps)
    rows, columns = (padding_sides(size, 2, tap) for tap in taps)
    images = torch.randn(2, 6, 7, 5)
    padded = functional.pad(images, (*columns, *rows))
    assert torch.equal(functional.conv2d(padded, kernel.float(), dilation=2, groups=groups), images)
