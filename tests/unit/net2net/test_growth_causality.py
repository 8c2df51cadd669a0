"""What an output may not depend on before growth, it does not depend on after growth, whatever the new weights are."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from growth_cases import relative_error
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

import sweeps
from espalier_trainer.net2net import Deepened, GrowthError, deepen, growth_points, rebuild, widen, widening_groups
from espalier_trainer.net2net.description import describe

LENGTH, CHANNELS = 24, 4
_SIGNAL = torch.randn(2, CHANNELS, LENGTH, generator=torch.Generator().manual_seed(3))


class Pad(nn.Module):
    """Pads on the left by a function."""

    def __init__(self, size: int, mode: str = "constant") -> None:
        super().__init__()
        self.size, self.mode = size, mode

    def forward(self, x: Tensor) -> Tensor:
        """Return x with `size` entries more at the left."""
        return functional.pad(x, (self.size, 0), mode=self.mode)


class Chomp(nn.Module):
    """Crops on the right, as the layers of a TCN do."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        """Return x without its last `size` entries."""
        return x[:, :, : -self.size] if self.size else x


class Shift(nn.Module):
    """Moves the signal to the right, so that a symmetric kernel after it sees no future."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        """Return x, `size` entries later."""
        return functional.pad(x, (self.size, 0))[..., : x.shape[-1]]


class Last(nn.Module):
    """Applies a module to the last axis of (batch, channels, time), with time before the channels."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        result = self.module(x.transpose(1, 2))
        result = result[0] if isinstance(result, tuple) else result
        return result.transpose(1, 2)


class Attention(nn.Module):
    """Causal attention and a multilayer perceptron, each with a residual."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.attention = nn.MultiheadAttention(CHANNELS, 2, batch_first=True)
        self.qkv = nn.Linear(CHANNELS, 3 * CHANNELS)
        self.norm = nn.LayerNorm(CHANNELS)
        self.first, self.second = nn.Linear(CHANNELS, 8), nn.Linear(8, CHANNELS)

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of x's shape (batch, channels, time)."""
        x = x.transpose(1, 2)
        if self.kind == "mask":
            mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], dtype=x.dtype)
            x = x + self.attention(x, x, x, attn_mask=mask, need_weights=False)[0]
        else:
            query, key, value = self.qkv(self.norm(x)).chunk(3, -1)
            x = x + functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return (x + self.second(functional.gelu(self.first(x)))).transpose(1, 2)


class MaskedMixer(nn.Module):
    """Mixes positions by a linear layer of whose weights those of the future are 0."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(LENGTH, LENGTH)
        with torch.no_grad():
            self.mix.weight.tril_()
        self.activation = nn.GELU()

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(self.mix(x))


class Gated(nn.Module):
    """WaveNet's unit: a filter and a gate, both causal, and a residual."""

    def __init__(self, size: int, dilation: int) -> None:
        super().__init__()
        self.past = dilation * (size - 1)
        self.filter, self.gate = (nn.Conv1d(CHANNELS, CHANNELS, size, dilation=dilation) for _ in range(2))
        self.tanh, self.sigmoid = nn.Tanh(), nn.Sigmoid()
        self.out = nn.Conv1d(CHANNELS, CHANNELS, 1)

    def forward(self, x: Tensor) -> Tensor:
        padded = functional.pad(x, (self.past, 0))
        return x + self.out(self.tanh(self.filter(padded)) * self.sigmoid(self.gate(padded)))


def _conv(size: int, dilation: int, **padding: object) -> nn.Conv1d:
    return nn.Conv1d(CHANNELS, CHANNELS, size, dilation=dilation, **padding)


UNITS: dict[str, Callable[[int, int, nn.Module], list[nn.Module]]] = {
    "function": lambda k, d, f: [Pad(d * (k - 1)), _conv(k, d), f],
    "replicated": lambda k, d, f: [Pad(d * (k - 1), "replicate"), _conv(k, d), f],
    "module": lambda k, d, f: [nn.ConstantPad1d((d * (k - 1), 0), 0.0), _conv(k, d), f],
    "zero pad": lambda k, d, f: [nn.ZeroPad1d((d * (k - 1), 0)), _conv(k, d), nn.LayerNorm(LENGTH) if k < 0 else f],
    "chomp after": lambda k, d, f: [_conv(k, d, padding=d * (k - 1)), f, Chomp(d * (k - 1))],
    "chomp between": lambda k, d, f: [_conv(k, d, padding=d * (k - 1)), Chomp(d * (k - 1)), f],
    "shifted": lambda k, d, f: [Shift(d * (k | 1)), _conv(k | 1, d, padding="same"), f],
    "pad far before": lambda k, d, f: [Pad(d * (k - 1)), nn.Conv1d(CHANNELS, CHANNELS, 1), _conv(k, d), f],
    "depthwise": lambda k, d, f: [Pad(d * (k - 1)), _conv(k, d, groups=CHANNELS), f],
    "gated": lambda k, d, _: [Gated(k, d)],
    "attention mask": lambda *_: [Attention("mask")],
    "causal attention": lambda *_: [Attention("flag")],
    "recurrent": lambda *_: [Last(nn.GRU(CHANNELS, CHANNELS, batch_first=True))],
    "dense": lambda _k, _d, f: [Last(nn.Sequential(nn.Linear(CHANNELS, CHANNELS), f))],
    "masked mixer": lambda *_: [MaskedMixer()],
}


def _looks_ahead(model: nn.Module, signal: Tensor, *, training: bool) -> bool:
    """Return whether any entry of the output depends on later entries of the input."""
    model.train(training)
    given = signal.clone().requires_grad_()
    result = model(given)
    for time in range(result.shape[-1] - 1):
        (gradient,) = torch.autograd.grad(result[..., time].sum(), given, retain_graph=True)
        if gradient[..., time + 1 :].any():
            return True
    return False


def _disturb(model: nn.Module, stacks: bool) -> nn.Module:
    """Give what was grown random weights; without stacks multiply all, which keeps what is masked."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "grown" in name:
                parameter.normal_(0, 0.5)
            elif not stacks:
                parameter.mul_(1 + torch.rand_like(parameter))
    return model


@st.composite
def causal_networks(draw: st.DrawFn) -> nn.Module:
    """Draw a stack of units of any causal family."""
    torch.manual_seed(draw(st.integers(0, 99)))
    units: list[nn.Module] = []
    for name in draw(st.lists(st.sampled_from(sorted(UNITS)), min_size=1, max_size=3)):
        activation = draw(st.sampled_from([nn.ReLU, nn.GELU, nn.Tanh, nn.LeakyReLU]))()
        units += UNITS[name](draw(st.integers(2, 4)), draw(st.integers(1, 2)), activation)
        units += draw(st.sampled_from([[], [nn.Dropout(0.1)]]))
    return nn.Sequential(*units, nn.Conv1d(CHANNELS, 3, 1))


@settings(max_examples=sweeps.examples(12), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(causal_networks(), st.data())
def test_no_growth_of_a_causal_network_sees_the_future(model: nn.Module, data: st.DataObject) -> None:
    assert not any(_looks_ahead(model, _SIGNAL, training=training) for training in (False, True))
    described = describe(model, _SIGNAL)
    for point in described.growth_points:
        grown = deepen(model, point.id, _SIGNAL)
        assert relative_error(grown.eval()(_SIGNAL), model.eval()(_SIGNAL)) <= 1e-6
        _disturb(grown, stacks=True)
        for training in (False, True):
            assert not _looks_ahead(grown, _SIGNAL, training=training), point
    for group in widening_groups(model, _SIGNAL):
        wider = _disturb(widen(model, group, group.next_width, _SIGNAL, seed=0), stacks=False)
        for training in (False, True):
            assert not _looks_ahead(wider, _SIGNAL, training=training), group.id
    if described.growth_points:
        points = data.draw(st.lists(st.sampled_from([point.id for point in described.growth_points]), max_size=3))
        grown = model
        for point in points:
            grown = deepen(grown, point, _SIGNAL)
        assert not _looks_ahead(_disturb(grown, stacks=True), _SIGNAL, training=False), points


@pytest.mark.parametrize("name", UNITS)
def test_every_family_grows_where_it_did(name: str) -> None:
    """Every family but the masked mixer has points; convolutions padded before them keep their kernel."""
    model = nn.Sequential(*UNITS[name](3, 2, nn.ReLU()), nn.Conv1d(CHANNELS, 3, 1))
    points = growth_points(model, _SIGNAL)
    kernels = {
        layer.attributes["kernel_size"] for point in points for layer in point.insertion if "Conv" in layer.operator
    }
    wanted = {(3,)} if name in ("function", "replicated", "module", "zero pad", "depthwise", "gated") else set()
    if name in ("chomp after", "shifted", "pad far before"):
        wanted = {(1,)}
    assert kernels == wanted
    assert bool(points) == (name not in ("chomp between", "recurrent", "masked mixer"))


def test_a_masked_mixer_is_refused_with_the_reason() -> None:
    with pytest.raises(
        GrowthError, match=r"'0.mix' cannot be deepened: a new layer there would read values that the model"
    ):
        deepen(nn.Sequential(MaskedMixer()), "0.mix", _SIGNAL)


class Tokens(nn.Module):
    """A causal language model whose input has no gradient: its indices select vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(16, CHANNELS)
        self.body = nn.Sequential(*UNITS["chomp after"](3, 1, nn.ReLU()), *UNITS["pad far before"](2, 2, nn.GELU()))
        self.head = nn.Linear(CHANNELS, 16)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return a loss, which depends on everything, and logits (batch, time, 16)."""
        logits: Tensor = self.head(self.body(self.table(tokens).transpose(1, 2)).transpose(1, 2))
        return logits[:, :-1].logsumexp(-1).mean(), logits


def test_a_language_model_with_a_loss_does_not_learn_to_copy_the_future() -> None:
    model, tokens = Tokens(), torch.randint(0, 16, (2, LENGTH))
    for point in growth_points(model, tokens):
        grown = _disturb(deepen(model, point.id, tokens), stacks=True)
        changed = tokens.clone()
        changed[:, LENGTH // 2 :] = (changed[:, LENGTH // 2 :] + 1) % 16
        kept = slice(None, LENGTH // 2)
        assert torch.equal(grown(tokens)[1][:, kept], grown(changed)[1][:, kept])


def test_one_causal_axis_of_two() -> None:
    """Frames and frequencies: no frame sees a later one, but both neighbours in frequency."""
    images = torch.randn(2, 3, 12, 12)
    model = nn.Sequential(nn.ZeroPad2d((1, 1, 2, 0)), nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 1))
    grown = _disturb(deepen(model, "1", images), stacks=True)
    given = images.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(grown(given)[:, :, 6, 6].sum(), given)
    seen = gradient.abs().sum((0, 1)) > 0
    assert not seen[7:].any()
    assert seen[2:7, 4:9].all()


def test_windows_that_look_to_both_sides_keep_growing() -> None:
    """A fully convolutional net on a map larger than what it sees, and a classifier without padding."""
    images = torch.randn(2, 3, 24, 24)
    dense = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 5, padding=2), nn.GELU())
    flat = nn.Sequential(nn.Conv2d(3, 4, 5), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(400, 3))
    for model, wanted in ((dense, [(3, 3), (5, 5)]), (flat, [(5, 5)])):
        points = growth_points(model, images)
        kernels = [
            layer.attributes["kernel_size"] for one in points for layer in one.insertion if "Conv" in layer.operator
        ]
        assert kernels == wanted


def test_documents_in_one_sequence_stay_apart() -> None:
    """A mask of blocks, which no padding shows: attention within each half, then a convolution over one half a time."""

    class Halves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix = nn.Conv1d(CHANNELS, CHANNELS, 3, padding=1)
            self.activation = nn.GELU()

        def forward(self, x: Tensor) -> Tensor:
            one, two = x.chunk(2, -1)
            joined = torch.cat([one.cumsum(-1), two.cumsum(-1)], -1)
            return self.activation(self.mix(joined[..., :1].expand_as(joined)) + joined)

    model = Halves()
    for point in growth_points(model, _SIGNAL):
        grown = _disturb(deepen(model, point.id, _SIGNAL), stacks=True)
        given = _SIGNAL.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(grown(given)[..., : LENGTH // 2].sum(), given)
        assert not gradient[..., LENGTH // 2 :].any()


def test_pointwise_growth_is_remembered() -> None:
    model = nn.Sequential(*UNITS["chomp after"](3, 1, nn.ReLU()), nn.Conv1d(CHANNELS, 3, 1))
    described = describe(model, _SIGNAL)
    grown = deepen(deepen(model, "0", _SIGNAL), "0", _SIGNAL)
    again = rebuild(copy.deepcopy(model), describe(grown, _SIGNAL), _SIGNAL)
    again.load_state_dict(grown.state_dict(), strict=True)
    assert (
        Deepened(point="0", pointwise=True).again(model, _SIGNAL).get_parameter("1.grown.0.conv.weight").shape[2] == 1
    )
    assert describe(grown, _SIGNAL, before=described).growth_points == describe(grown, _SIGNAL).growth_points
