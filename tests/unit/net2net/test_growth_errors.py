"""Places that cannot grow are not offered, and asking for them says the layer, what was found, and what to do."""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Callable
from threading import Lock

import pytest
import torch
from residual_nets import Written
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from espalier_core.growth.deepen import deepened
from espalier_trainer.net2net import DeepenBlock, GrowthError, deepen, growth_points
from espalier_trainer.net2net.description import describe


def _shared_relu(m: nn.Module, x: Tensor) -> Tensor:
    """Add without a module and use one activation at two places: the first has nowhere to put a layer."""
    return m.relu(m.last(m.relu(m.layer(x) + x)))


class ByValue(nn.Module):
    """Decides by the values of its input."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block
        self.other = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.block(x) if x.sum() > -1e9 else self.other(x)


class OverChildren(nn.Module):
    """Runs whatever children it has, then a functional activation."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        for child in self.children():
            x = child(x)
        return torch.relu(x)


def _tied() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    model[2].weight = model[0].weight
    return model


def _own_grown() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    model[1].grown = nn.Identity()
    return model


BROKEN: dict[str, tuple[Callable[[], nn.Module], str, str]] = {
    "unknown id": (
        lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU()),
        "body.0",
        "'body.0' is not a growth point of this model; its growth points: 0",
    ),
    "unknown operation between": (
        lambda: nn.Sequential(nn.Linear(4, 4), nn.Softmax(-1), nn.ReLU()),
        "0",
        "'0' cannot be deepened: expected an activation after '0' (through normalisation, dropout or addition), "
        "found Softmax '1'; put an activation there",
    ),
    "no activation": (
        lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)),
        "0",
        "'0' cannot be deepened: no activation follows '0', so a new layer would merge with it; "
        "put an activation there",
    ),
    "no slope at zero": (
        lambda: nn.Sequential(nn.Linear(4, 4), nn.LeakyReLU(0.0)),
        "0",
        "'0' cannot be deepened: the activation '1' after it is LeakyReLU with {'negative_slope': 0.0}, of slope 0 "
        "at 0, where a zero branch never learns; use ReLU",
    ),
    "tied": (_tied, "0", "'0' cannot be deepened: '0' shares a parameter with '2'; untie them before growth"),
    "called twice": (
        lambda: Written(lambda m, x: torch.relu(m.layer(torch.relu(m.layer(x)))), layer=nn.Linear(4, 4)),
        "layer",
        "'layer' cannot be deepened: 'layer' is called 2 times, on its own result, and growth would "
        "change each call; grow another layer, or give each call a separate module, with weights of its own",
    ),
    "shared by two branches": (
        lambda: Written(lambda m, x: torch.relu(m.layer(x)) + torch.relu(m.layer(x.flip(0))), layer=nn.Linear(4, 4)),
        "layer",
        "'layer' cannot be deepened: 'layer' is called 2 times and growth would change each call; concatenate the "
        "inputs of the calls and call it once (`torch.cat`, then `chunk`), or give each call a separate module",
    ),
    "parametrized": (
        lambda: nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 4)), nn.ReLU()),
        "0",
        "'0' cannot be deepened: the weight of '0' is parametrized (weight or spectral norm); "
        "remove the parametrization before growth",
    ),
    "no host": (
        lambda: Written(_shared_relu, layer=nn.Linear(4, 4), last=nn.Linear(4, 4), relu=nn.ReLU()),
        "layer",
        "'layer' cannot be deepened: neither the activation 'relu' (called 2 times) nor 'add' before it is the "
        "output of a module called once; give the activation a separate module",
    ),
    "name taken": (
        _own_grown,
        "0",
        "'0' cannot be deepened: '1' already has an attribute 'grown'; give it another name",
    ),
    "not marked": (
        lambda: nn.Sequential(DeepenBlock(nn.Linear(4, 4), nn.ReLU()), nn.Linear(4, 4), nn.ReLU()),
        "1",
        "'1' cannot be deepened: the model marks its places with DeepenBlock, and this layer is in none; mark it",
    ),
    "inside a mark": (
        lambda: nn.Sequential(DeepenBlock(nn.Linear(4, 4), nn.ReLU())),
        "0.0",
        "'0.0' cannot be deepened: the model marks its places; name the mark '0' instead",
    ),
    "mark without activation": (
        lambda: nn.Sequential(DeepenBlock(nn.Linear(4, 4), nn.BatchNorm1d(4)), nn.ReLU()),
        "0",
        "'0' cannot be deepened: the marked block '0' holds no activation after a layer; expected one of Linear, "
        "Conv1d, Conv2d, Conv3d, normalisation if any, then one of CELU, ELU, GELU, Hardsigmoid, Hardswish, Hardtanh, "
        "LeakyReLU, LogSigmoid, Mish, PReLU, RReLU, ReLU, ReLU6, SELU, SiLU, Sigmoid, Softplus, Softsign, Tanh",
    ),
    "decides by values": (
        lambda: ByValue(nn.Sequential(nn.Linear(4, 4), nn.ReLU())),
        "block.0",
        "ByValue branches on a tensor's values (__bool__ at "
        f"{__file__}:{inspect.getsourcelines(ByValue.forward)[1] + 1}), so its layers cannot be followed; mark the "
        "places that may grow with DeepenBlock, or compute both branches and choose with torch.where",
    ),
    "wrapped": (
        lambda: nn.DataParallel(nn.Sequential(nn.Linear(4, 4), nn.ReLU())),
        "0",
        "DataParallel wraps the model; grow its `.module` and wrap the result again "
        "(a job's model must not be wrapped)",
    ),
    "lazy": (
        lambda: nn.Sequential(nn.LazyLinear(4), nn.ReLU()),
        "0",
        "'0.weight' has no shape yet (lazy module); run the model on one batch before growing it",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_the_error_says_what_is_wrong(case: str) -> None:
    build, point, text = BROKEN[case]
    with pytest.raises(GrowthError) as error:
        deepen(build(), point, torch.randn(3, 4))
    assert str(error.value) == text


@pytest.mark.parametrize("case", [name for name in BROKEN if name not in ("decides by values", "wrapped", "lazy")])
def test_what_cannot_grow_is_not_offered(case: str) -> None:
    build, point, _ = BROKEN[case]
    offered = [found.id for found in growth_points(build(), torch.randn(3, 4))]
    assert point not in offered
    for other in offered:
        deepen(build(), other, torch.randn(3, 4))


def test_a_failing_forward_is_reported() -> None:
    with pytest.raises(GrowthError, match=r"Sequential fails on the example input \(RuntimeError: .*give one batch"):
        growth_points(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.randn(3, 5))


class ByClass(nn.Module):
    """Runs its linear layers, and what is exactly a ReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x) if isinstance(layer, nn.Linear) or type(layer) is nn.ReLU else x
        return x


LOOKING: dict[str, tuple[type[nn.Module], str, str]] = {
    "over its children": (OverChildren, "body.second", "'body' (OverChildren)"),
    "by class": (ByClass, "body.layers.0", "'body.layers.1' (ReLU)"),
}


@pytest.mark.parametrize("case", LOOKING)
def test_a_forward_that_looks_at_its_modules_is_neither_offered_nor_grown(case: str) -> None:
    kind, point, host = LOOKING[case]
    other = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    model = nn.Sequential(OrderedDict(body=kind(), other=other))
    example = torch.randn(3, 4)
    offered = ["other.0"]
    assert [found.id for found in growth_points(model, example)] == offered
    assert [found.id for found in describe(model, example).growth_points] == offered
    with pytest.raises(GrowthError) as error:
        deepen(model, point, example)
    assert str(error.value) == (
        f"{point!r} cannot be deepened: growth is inserted after {host}, and the model's forward behaves "
        "differently with one more module in it; give the activation a separate module, and do not let the "
        "forward depend on which modules there are or on their exact class"
    )
    assert torch.equal(deepen(model, "other.0", example)(example), model(example))


class Functionally(nn.Module):
    """A container, whose output a function activates."""

    def __init__(self, change: Callable[..., Tensor | None], *, separate: bool = False) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
        self.body.register_forward_hook(change)
        self.act = nn.Tanh() if separate else torch.tanh

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.body(x))


@pytest.mark.parametrize(
    "change", [lambda _m, _a, out: out + 1, lambda _m, _a, out: out + -2 * out], ids=["shift", "sign"]
)
def test_a_place_before_a_hook_that_changes_the_output_is_refused(change: Callable[..., Tensor]) -> None:
    """New layers would come before the hook, and the activation after it."""
    example = torch.randn(3, 4)
    model = Functionally(change)
    model.body.insert(1, nn.ReLU())  # a place that the hook does not concern
    grown = deepen(model, "body.0", example)
    assert torch.equal(grown(example), model(example))
    model = Functionally(change)
    assert growth_points(model, example) == []
    with pytest.raises(GrowthError, match="a forward hook changes the output of .body.1. .*give the activation"):
        deepen(model, "body.0", example)


@pytest.mark.parametrize(
    ("change", "separate"), [(lambda _m, _a, _o: None, False), (lambda _m, _a, out: out + 1, True)]
)
def test_a_hook_that_only_looks_or_comes_before_the_new_layers_refuses_nothing(
    change: Callable[..., Tensor | None], separate: bool
) -> None:
    torch.manual_seed(0)
    model, example = Functionally(change, separate=separate), torch.randn(3, 4)
    assert [point.id for point in growth_points(model, example)] == ["body.0"]
    torch.testing.assert_close(deepen(model, "body.0", example)(example), model(example))


def test_a_model_that_cannot_be_copied_offers_nothing() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    model.lock = Lock()
    assert growth_points(model, torch.randn(3, 4)) == []
    with pytest.raises(GrowthError, match=r"Sequential cannot be copied \(TypeError: .*lock.*keep objects that"):
        deepen(model, "0", torch.randn(3, 4))


def test_marked_places_of_a_model_that_decides_by_values_grow() -> None:
    model = ByValue(nn.Sequential(DeepenBlock(nn.Linear(4, 4), nn.GELU()), nn.Linear(4, 2)))
    example = torch.randn(3, 4)
    described = describe(model, example)
    assert [layer.name for layer in described.layers if layer.operator in ("Linear", "GELU")] == [
        "block.0.0",
        "block.0.1",
        "block.1",
    ]
    grown = deepen(model, "block.0", example)
    assert torch.equal(grown(example), model(example))
    assert describe(grown, example) == deepened(described, "block.0")
