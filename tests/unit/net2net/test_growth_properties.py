"""Random small networks: whatever is offered grows exactly, any number of times, and the description follows."""

from __future__ import annotations

import copy

import torch
from growth_cases import assert_same_behaviour, behaviour
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

import sweeps
from espalier_core.growth.deepen import deepened
from espalier_trainer.net2net import DeepenBlock, deepen, growth_points, rebuild
from espalier_trainer.net2net.description import describe

ACTIVATIONS = {
    "ReLU": functional.relu, "ReLU6": functional.relu6, "GELU": functional.gelu, "SiLU": functional.silu,
    "Tanh": torch.tanh, "Hardswish": functional.hardswish, "LeakyReLU": functional.leaky_relu,
    "Sigmoid": torch.sigmoid, "ELU": functional.elu,
}  # fmt: skip


class Unit(nn.Module):
    """Convolution, perhaps a norm, an activation in one of the ways people write it, perhaps a residual."""

    def __init__(self, layers: list[nn.Module], activation: str, way: str, residual: bool) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)
        self.way = way
        self.function = ACTIVATIONS[activation]
        self.activation = getattr(nn, activation)()
        self.residual = residual

    def forward(self, x: Tensor) -> Tensor:
        """Return activation(layers(x) [+ x]), a module's activation twice if it is shared."""
        out = self.layers(x)
        if self.residual and out.shape == x.shape:
            out = out + x
        if self.way == "function":
            return self.function(out)
        out = self.activation(out)
        return self.activation(out) if self.way == "shared" else out


@st.composite
def networks(draw: st.DrawFn) -> tuple[nn.Module, Tensor]:
    """Draw a network and an input for it."""
    torch.manual_seed(draw(st.integers(0, 99)))
    channels = 4
    units: list[nn.Module] = []
    for _ in range(draw(st.integers(1, 3))):
        groups = draw(st.sampled_from([1, 2, 4]))
        width = draw(st.sampled_from([4, 8]))
        kernel = (draw(st.integers(1, 4)), draw(st.integers(1, 4)))
        mode = draw(st.sampled_from(["zeros", "reflect", "replicate", "circular"]))
        layers: list[nn.Module] = [
            nn.Conv2d(
                channels,
                width,
                kernel,
                stride=draw(st.integers(1, 2)),
                padding=(kernel[0] // 2, kernel[1] // 2),
                dilation=draw(st.integers(1, 2)),
                groups=groups,
                bias=draw(st.booleans()),
                padding_mode=mode,
            )
        ]
        norm = draw(st.sampled_from([None, nn.BatchNorm2d(width), nn.GroupNorm(2, width)]))
        layers += [] if norm is None else [norm]
        activation = draw(st.sampled_from(sorted(ACTIVATIONS)))
        way = draw(st.sampled_from(["module", "function", "shared", "marked"]))
        if way == "marked":
            units.append(DeepenBlock(*layers, getattr(nn, activation)()))
        else:
            units.append(Unit(layers, activation, way, draw(st.booleans())))
        channels = width
    head = [nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * channels, 5), nn.Tanh(), nn.Linear(5, 3)]
    # The smallest that three strided, dilated kernels and their reflected paddings leave something of.
    return nn.Sequential(*units, *head), torch.randn(3, 4, 40, 41)


@settings(max_examples=sweeps.examples(25), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(networks(), st.data())
def test_any_growth_of_any_network_is_exact(drawn: tuple[nn.Module, Tensor], data: st.DataObject) -> None:
    model, example = drawn
    points = [point.id for point in growth_points(model, example)]
    start = copy.deepcopy(model)
    before = behaviour(copy.deepcopy(model), example)
    described = describe(model, example)
    sequence = data.draw(st.lists(st.sampled_from(points), min_size=1, max_size=4)) if points else []
    for point in sequence:
        model = deepen(model, point, example)
        described = deepened(described, point)
        assert describe(model, example) == described
        assert [found.id for found in growth_points(model, example)] == points
    assert_same_behaviour(copy.deepcopy(model), before, example, str(sequence))
    again = rebuild(start, described, example)
    again.load_state_dict(model.state_dict(), strict=True)
