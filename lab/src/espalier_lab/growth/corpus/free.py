"""Freely drawn designs, layer by layer: models with many kinds of deficiencies for their data.

Families of `designs` vary one body; these are combinations of drawn stems, layers that mix places, layers that do not,
poolings and heads. So some mix neighbours only once, or never, some are narrow at one place, some have only a head, and
some lack nothing. Budgets are long enough that a good growth can pay.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Final

from torch import nn

from espalier_lab.growth.corpus.designs import ACTIVATIONS
from espalier_lab.growth.corpus.inputs import DataSet
from espalier_lab.growth.corpus.layers import Branches, Last, Mean, Residual, Swap

Made = tuple[list[nn.Module], int]
"""Layers, and the channels or features after them."""


def free_model(kind: str, choices: int, inputs: DataSet) -> nn.Module:
    """Return the model drawn by `choices` for a data set of its kind; draw weights from torch's generator."""
    return nn.Sequential(*_MAKERS[kind](_Draw(choices), inputs))


def free_steps(kind: str, chance: random.Random) -> int:
    """Draw a budget, in steps."""
    low, high = {"table": (500, 1200), "tokens": (250, 800), "image": (250, 700)}[kind]
    return round(low * math.exp(chance.random() * math.log(high / low)))


class _Draw:
    """The common properties of a design's layers, and the draws for the rest; equal numbers give equal draws."""

    def __init__(self, choices: int) -> None:
        self.chance = random.Random(choices)
        self.activation: Callable[[], nn.Module] = ACTIVATIONS[
            self.chance.choice(["relu", "relu", "relu", "gelu", "silu", "tanh"])
        ]
        self.norm = self.chance.random() < 0.4

    def act(self) -> nn.Module:
        """Return an activation."""
        return self.activation()

    def of(self, *choices: int) -> int:
        """Draw one choice."""
        index = self.chance.randrange(len(choices))
        return choices[index]

    def likely(self, probability: float) -> bool:
        """Draw whether something is the case."""
        return self.chance.random() < probability


def _image(draw: _Draw, inputs: DataSet) -> list[nn.Module]:
    layers, channels, side = _image_stem(draw, inputs)
    for _ in range(draw.of(0, 1, 1, 2, 2, 3)):
        made, channels = _image_layer(draw, channels)
        layers += made
        if side >= 6 and draw.likely(0.35):
            layers.append(nn.MaxPool2d(2) if draw.likely(0.5) else nn.AvgPool2d(2))
            side //= 2
    return [*layers, *_places_head(draw, channels, inputs.classes, (2, 3), nn.AdaptiveAvgPool2d)]


def _image_stem(draw: _Draw, inputs: DataSet) -> tuple[list[nn.Module], int, int]:
    size, stride = draw.of(1, 2, 3, 3, 5), draw.of(1, 2, 2, 3)
    width = draw.of(4, 6, 8, 10, 12)
    padding = size // 2 if size % 2 else 0
    side = (inputs.length + 2 * padding - size) // stride + 1
    stem = nn.Conv2d(inputs.channels, width, size, stride, padding)
    return [stem, *_normed(draw, nn.BatchNorm2d, width), draw.act()], width, side


def _image_layer(draw: _Draw, channels: int) -> Made:
    width = draw.of(3, 6, 8, 12, 16)
    kind = draw.of(0, 0, 1, 1, 2, 3, 4)
    if kind == 0:
        return [nn.Conv2d(channels, width, 3, padding=1), *_normed(draw, nn.BatchNorm2d, width), draw.act()], width
    if kind == 1:
        return [nn.Conv2d(channels, width, 1), *_normed(draw, nn.BatchNorm2d, width), draw.act()], width
    if kind == 2:
        inner = [nn.Conv2d(channels, width, draw.of(1, 3), padding="same"), draw.act(), nn.Conv2d(width, channels, 1)]
        return [Residual(nn.Sequential(*inner), draw.act())], channels
    if kind == 3:
        spatial = nn.Conv2d(channels, channels, 3, padding=1, groups=channels)
        return [spatial, draw.act(), nn.Conv2d(channels, width, 1), draw.act()], width
    half = max(2, width // 2)
    paths = [
        nn.Sequential(nn.Conv2d(channels, half, size, padding="same"), draw.act()) for size in (1, draw.of(1, 3, 5))
    ]
    return [Branches(paths)], 2 * half


def _tokens(draw: _Draw, inputs: DataSet) -> list[nn.Module]:
    channels = draw.of(4, 8, 12, 16)
    layers: list[nn.Module] = [nn.Embedding(inputs.vocabulary, channels)]
    if draw.likely(0.25):
        width = draw.of(6, 10, 16)
        reader = (nn.GRU, nn.LSTM, nn.RNN)[draw.of(0, 1, 2)](channels, width, batch_first=True)
        return [*layers, Last(reader), *_linear_head(draw, width, inputs.classes)]
    layers.append(Swap())
    for _ in range(draw.of(0, 1, 1, 2, 2, 3)):
        width = draw.of(4, 8, 12, 20)
        size = draw.of(1, 1, 3, 3, 5)
        if draw.likely(0.3):
            inner = [nn.Conv1d(channels, width, size, padding="same"), draw.act(), nn.Conv1d(width, channels, 1)]
            layers.append(Residual(nn.Sequential(*inner), draw.act()))
        else:
            layers += [nn.Conv1d(channels, width, size, padding="same"), draw.act()]
            channels = width
    return [*layers, *_places_head(draw, channels, inputs.classes, (2,), nn.AdaptiveAvgPool1d)]


def _table(draw: _Draw, inputs: DataSet) -> list[nn.Module]:
    layers: list[nn.Module] = []
    features = inputs.channels
    for _ in range(draw.of(1, 1, 2, 2, 3)):
        width = draw.of(3, 6, 10, 16, 32)
        if draw.likely(0.25) and layers:
            inner = [nn.Linear(features, width), draw.act(), nn.Linear(width, features)]
            layers.append(Residual(nn.Sequential(*inner)))
        else:
            layers += [nn.Linear(features, width), *_normed(draw, nn.BatchNorm1d, width), draw.act()]
            features = width
    return [*layers, nn.Linear(features, inputs.classes)]


def _places_head(
    draw: _Draw, channels: int, classes: int, places: tuple[int, ...], pool: Callable[[int], nn.Module]
) -> list[nn.Module]:
    """Return a reader of all places: their mean, parts of them, or each."""
    if draw.likely(0.4):
        return [Mean(*places), *_linear_head(draw, channels, classes)]
    kept = draw.of(2, 3)
    return [pool(kept), nn.Flatten(), *_linear_head(draw, channels * kept ** len(places), classes)]


def _linear_head(draw: _Draw, features: int, classes: int) -> list[nn.Module]:
    width = draw.of(0, 0, 6, 12, 24)
    if not width:
        return [nn.Linear(features, classes)]
    return [nn.Linear(features, width), draw.act(), nn.Linear(width, classes)]


def _normed(draw: _Draw, norm: Callable[[int], nn.Module], channels: int) -> list[nn.Module]:
    return [norm(channels)] if draw.norm else []


_MAKERS: Final[dict[str, Callable[[_Draw, DataSet], list[nn.Module]]]] = {
    "image": _image,
    "tokens": _tokens,
    "table": _table,
}
