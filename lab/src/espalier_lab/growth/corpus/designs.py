"""Designs of models, drawn from a seed: a body, a deficiency or an excess, and the details."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from torch import nn

from espalier_lab.growth.corpus.inputs import DataSet
from espalier_lab.growth.corpus.layers import (
    Branches,
    Dense,
    Last,
    Mean,
    MixerBlock,
    Patches,
    PositionEmbedding,
    Residual,
    Swap,
    TransformerBlock,
)

SIZES: Final = ("narrow", "shallow", "bottleneck", "right", "large")
"""Deficiency or excess of a design. `shallow`: one block; `bottleneck`: one layer of a few channels."""
ACTIVATIONS: Final[dict[str, Callable[[], nn.Module]]] = {
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
}
BODIES: Final = {
    "image": ("conv", "pooled", "residual", "depthwise", "branched", "dense", "mixer", "transformer", "mlp"),
    "tokens": ("transformer", "mixer", "conv", "recurrent", "mlp"),
    "table": ("mlp", "residual", "branched", "dense", "funnel"),
    "signal": ("conv", "pooled", "residual", "recurrent", "mlp"),
}
_WIDTHS: Final = {"image": 8, "tokens": 16, "table": 24, "signal": 12}


@dataclass(frozen=True, slots=True)
class Design:
    """The full description of a model, apart from its data and its weights."""

    name: str
    kind: str
    """Kind of input."""
    body: str
    size: str
    width: int
    depth: int
    activation: str
    norm: bool
    mean: bool
    """Whether all places are averaged at the end; else parts of them, or none."""
    waist: int
    """Channels of the layer that is a bottleneck; 0: none."""
    waist_at: int
    """The block with the bottleneck."""
    steps: int
    learning_rate: float

    def width_at(self, block: int) -> int:
        """Return the channels of a block."""
        return self.waist if self.waist and block == self.waist_at else self.width

    def act(self) -> nn.Module:
        """Return an activation."""
        return ACTIVATIONS[self.activation]()


def drawn(kind: str, body: str, size: str, chance: random.Random) -> Design:
    """Draw the details of a design."""
    width = round(_WIDTHS[kind] * chance.choice([0.75, 1.0, 1.5]) / 4) * 4
    depth = chance.choice([2, 3])
    waist = 0
    if size == "narrow":
        width = 4
    elif size == "shallow":
        depth = 1
    elif size == "bottleneck":
        depth, waist = 3, chance.choice([2, 3])
    elif size == "large":
        width, depth = width * 3 // 2 // 2 * 2, 3
    if body in ("transformer", "mixer", "residual", "recurrent"):
        waist = waist and 4
    return Design(
        name=f"{kind}-{body}-{size}",
        kind=kind,
        body=body,
        size=size,
        width=width,
        depth=depth,
        activation=chance.choice(["relu", "relu", "relu", "gelu", "silu", "tanh"]),
        norm=chance.random() < 0.7,
        mean=chance.random() < 0.5,
        waist=waist,
        waist_at=chance.randrange(depth) if waist else 0,
        steps=_steps(kind, body, size, chance),
        learning_rate=chance.choice([0.005, 0.01, 0.015]),
    )


def _steps(kind: str, body: str, size: str, chance: random.Random) -> int:
    """Draw a budget: fast models get more steps, so that families cost about the same."""
    steps = {"table": 700, "tokens": 450, "image": 350, "signal": 400}[kind]
    if body in ("transformer", "mixer", "recurrent", "dense", "residual") and kind != "table":
        steps = steps * 2 // 3
    if size in ("large", "bottleneck") or body == "transformer":
        steps = steps * 2 // 3
    elif size in ("narrow", "shallow"):
        steps = steps * 3 // 2
    return round(steps * chance.choice([0.75, 1.0, 1.25]))


def built(design: Design, inputs: DataSet) -> nn.Module:
    """Return a model of this design for a data set of its kind; draws weights from torch's generator."""
    return nn.Sequential(*_MAKERS[design.kind](design, inputs))


def _images(design: Design, inputs: DataSet) -> list[nn.Module]:
    width = design.width
    if design.body in ("mixer", "transformer"):
        tokens = (inputs.length // 2) ** 2
        blocks = _token_blocks(design, tokens)
        head = [Mean(1), nn.Linear(width, inputs.classes)]
        return [PositionEmbedding(Patches(inputs.channels, width, 2), tokens, width), *blocks, *head]
    if design.body == "mlp":
        return [nn.Flatten(), *_linear(design, inputs.channels * inputs.length**2, inputs.classes)]
    layers: list[nn.Module] = []
    channels = inputs.channels
    if design.body in ("residual", "dense", "branched", "depthwise"):
        layers += _conv(design, channels, width, 1)
        channels = width
    for block in range(design.depth):
        made, channels = _image_block(design, channels, block)
        layers += made
        if design.body == "pooled" and block < 2:
            layers.append(nn.MaxPool2d(2))
    if design.mean:
        return [*layers, Mean(2, 3), *_head(design, channels, inputs.classes)]
    return [*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), *_head(design, 4 * channels, inputs.classes)]


def _image_block(design: Design, channels: int, block: int) -> tuple[list[nn.Module], int]:
    wide = design.width_at(block)
    if design.body == "residual":
        body = nn.Sequential(
            *_conv(design, channels, wide if design.waist else design.width, 1),
            nn.Conv2d(wide if design.waist else design.width, channels, 3, padding=1),
        )
        return [Residual(body, design.act())], channels
    if design.body == "depthwise":
        spatial = nn.Conv2d(channels, channels, 3, padding=1, groups=channels)
        return [spatial, *_norm(design, channels), design.act(), nn.Conv2d(channels, wide, 1), design.act()], wide
    if design.body == "branched":
        half = max(2, wide // 2)
        small = nn.Sequential(nn.Conv2d(channels, half, 1), design.act())
        big = nn.Sequential(nn.Conv2d(channels, half, 3, padding=1), design.act())
        return [Branches([small, big])], 2 * half
    if design.body == "dense":
        more = max(2, wide // 2)
        return [Dense(nn.Sequential(*_conv(design, channels, more, 1)))], channels + more
    return _conv(design, channels, wide, 1), wide


def _conv(design: Design, channels: int, width: int, stride: int) -> list[nn.Module]:
    return [nn.Conv2d(channels, width, 3, stride, 1), *_norm(design, width), design.act()]


def _norm(design: Design, channels: int) -> list[nn.Module]:
    return [nn.BatchNorm2d(channels)] if design.norm else []


def _head(design: Design, channels: int, classes: int) -> list[nn.Module]:
    if design.norm:
        return [nn.Linear(channels, classes)]
    return [nn.Linear(channels, 2 * design.width), design.act(), nn.Linear(2 * design.width, classes)]


def _token_blocks(design: Design, tokens: int) -> list[nn.Module]:
    hidden = design.waist or 2 * design.width
    if design.body == "mixer":
        return [MixerBlock(tokens, design.width, hidden, design.act()) for _ in range(design.depth)]
    return [TransformerBlock(design.width, 2, hidden, design.act()) for _ in range(design.depth)]


def _tokens(design: Design, inputs: DataSet) -> list[nn.Module]:
    width, classes = design.width, inputs.classes
    embedded: list[nn.Module] = [nn.Embedding(inputs.vocabulary, width)]
    if design.body in ("transformer", "mixer"):
        placed = PositionEmbedding(embedded[0], inputs.length, width)
        return [placed, *_token_blocks(design, inputs.length), Mean(1), *_head(design, width, classes)]
    if design.body == "mlp":
        return [*embedded, nn.Flatten(), *_linear(design, inputs.length * width, classes)]
    if design.body == "recurrent":
        return [*embedded, Last(nn.GRU(width, width, batch_first=True)), *_linear(design, width, classes)]
    layers = [*embedded, Swap(), *_convolutions(design, width)]
    if design.mean:
        return [*layers, Mean(2), *_head(design, width, classes)]
    return [*layers, nn.Flatten(), *_head(design, inputs.length * width, classes)]


def _convolutions(design: Design, channels: int) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for block in range(design.depth):
        wide = design.width_at(block) if block < design.depth - 1 else design.width
        if design.body == "residual" and block:
            body = nn.Sequential(
                nn.Conv1d(channels, wide, 3, padding=1), design.act(), nn.Conv1d(wide, channels, 3, padding=1)
            )
            layers.append(Residual(body, design.act()))
            continue
        layers += [nn.Conv1d(channels, wide, 3, padding=1), design.act()]
        channels = wide
        if design.body == "pooled":
            layers.append(nn.MaxPool1d(2))
    return layers


def _signals(design: Design, inputs: DataSet) -> list[nn.Module]:
    width = design.width
    if design.body == "mlp":
        return [nn.Flatten(), *_linear(design, inputs.channels * inputs.length, inputs.classes)]
    if design.body == "recurrent":
        cut = [nn.Conv1d(inputs.channels, width, 4, 4), design.act(), Swap()]
        return [*cut, Last(nn.GRU(width, width, batch_first=True)), *_linear(design, width, inputs.classes)]
    layers = _convolutions(design, inputs.channels)
    channels = next(layer.out_channels for layer in reversed(layers) if isinstance(layer, nn.Conv1d))
    if design.mean:
        return [*layers, Mean(2), *_head(design, channels, inputs.classes)]
    return [*layers, nn.AdaptiveAvgPool1d(3), nn.Flatten(), *_head(design, 3 * channels, inputs.classes)]


def _tables(design: Design, inputs: DataSet) -> list[nn.Module]:
    width, features = design.width, inputs.channels
    if design.body in ("mlp", "funnel"):
        return _linear(design, features, inputs.classes)
    layers: list[nn.Module] = [nn.Linear(features, width), design.act()]
    channels = width
    for block in range(design.depth):
        wide = design.width_at(block)
        if design.body == "residual":
            layers.append(Residual(nn.Sequential(nn.Linear(channels, wide), design.act(), nn.Linear(wide, channels))))
        elif design.body == "dense":
            layers.append(Dense(nn.Sequential(nn.Linear(channels, max(2, wide // 2)), design.act())))
            channels += max(2, wide // 2)
        else:
            half = max(2, wide // 2)
            deep = nn.Sequential(nn.Linear(channels, half), design.act(), nn.Linear(half, half), nn.Tanh())
            layers.append(Branches([nn.Sequential(nn.Linear(channels, half), design.act()), deep]))
            channels = 2 * half
    return [*layers, nn.Linear(channels, inputs.classes)]


def _linear(design: Design, features: int, classes: int) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for block in range(design.depth):
        wide = design.width_at(block)
        if design.body == "funnel":
            wide = max(2, wide * 2 >> block)
        layers.append(nn.Linear(features, wide))
        if design.norm:
            layers.append(nn.BatchNorm1d(wide))
        layers.append(design.act())
        features = wide
    return [*layers, nn.Linear(features, classes)]


_MAKERS: Final = {"image": _images, "tokens": _tokens, "table": _tables, "signal": _signals}
