"""The families that judge the shipped policy, held back from learning: `espalier agent judge --models` reads this file.

A part is drawn from another seed than those that are learnt from, and has a kind of input that these lack (signals).
The others are written by hand, after models that people use, without a look at what was learnt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from espalier_lab.growth.corpus.families import BATCH_SIZE, DATA_SETS, UNSEEN
from espalier_lab.growth.corpus.inputs import KINDS, DataSet, inputs_of
from espalier_lab.growth.corpus.layers import Branches, Last, Mean, PositionEmbedding, Residual, Swap, TransformerBlock

SEED = UNSEEN.seed


def lenet(data: DataSet) -> nn.Module:
    """Convolutions and pooling in turns, then linear layers (LeCun et al. 1998)."""
    convolutions = [nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 12, 3), nn.ReLU()]
    return nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(108, 24), nn.ReLU(), nn.Linear(24, data.classes))


def one_look(data: DataSet) -> nn.Module:
    """One large kernel with a stride: nothing after it sees neighbours again."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 5, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 12, 1), nn.ReLU(), Mean(2, 3),
        nn.Linear(12, data.classes),
    )  # fmt: skip


def fire(data: DataSet) -> nn.Module:
    """Squeeze by 1x1, expand by 1x1 and 3x3 side by side (SqueezeNet)."""

    def module(channels: int, squeezed: int, width: int) -> nn.Module:
        small = nn.Sequential(nn.Conv2d(squeezed, width, 1), nn.ReLU())
        large = nn.Sequential(nn.Conv2d(squeezed, width, 3, padding=1), nn.ReLU())
        return nn.Sequential(nn.Conv2d(channels, squeezed, 1), nn.ReLU(), Branches([small, large]))

    stem = [nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU()]
    return nn.Sequential(*stem, module(8, 3, 6), module(12, 3, 6), Mean(2, 3), nn.Linear(12, data.classes))


def inverted(data: DataSet) -> nn.Module:
    """Wide depthwise convolutions between narrow ends (MobileNetV2)."""

    def block(width: int, hidden: int) -> nn.Module:
        return Residual(
            nn.Sequential(
                nn.Conv2d(width, hidden, 1), nn.BatchNorm2d(hidden), nn.ReLU6(),
                nn.Conv2d(hidden, hidden, 3, padding=1, groups=hidden), nn.BatchNorm2d(hidden), nn.ReLU6(),
                nn.Conv2d(hidden, width, 1), nn.BatchNorm2d(width),
            )
        )  # fmt: skip

    stem = [nn.Conv2d(1, 6, 3, 2, 1), nn.BatchNorm2d(6), nn.ReLU6()]
    return nn.Sequential(*stem, block(6, 12), block(6, 12), Mean(2, 3), nn.Linear(6, data.classes))


def thin_residual(data: DataSet) -> nn.Module:
    """Three equal residual blocks of four channels."""

    def block() -> nn.Module:
        first = [nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()]
        return Residual(nn.Sequential(*first, nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)), nn.ReLU())

    stem = [nn.Conv2d(1, 4, 3, 2, 1), nn.BatchNorm2d(4), nn.ReLU()]
    return nn.Sequential(*stem, block(), block(), block(), Mean(2, 3), nn.Linear(4, data.classes))


def hourglass(data: DataSet) -> nn.Module:
    """A table through a waist of three."""
    widths = [data.channels, 32, 3, 32]
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(32, data.classes))


class Towers(nn.Module):
    """Each half of a table by itself, then both together."""

    def __init__(self, data: DataSet) -> None:
        super().__init__()
        half = data.channels // 2
        self.left = nn.Sequential(nn.Linear(half, 8), nn.ReLU())
        self.right = nn.Sequential(nn.Linear(data.channels - half, 8), nn.ReLU())
        self.join = nn.Sequential(nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, data.classes))
        self.half = half

    def forward(self, table: Tensor) -> Tensor:
        return self.join(torch.cat([self.left(table[:, : self.half]), self.right(table[:, self.half :])], 1))  # type: ignore[no-any-return]


class Gated(nn.Module):
    """Linear layers, each with a gate (GLU)."""

    def __init__(self, data: DataSet) -> None:
        super().__init__()
        self.values, self.gates = nn.Linear(data.channels, 12), nn.Linear(data.channels, 12)
        self.hidden, self.out = nn.Linear(12, 12), nn.Linear(12, data.classes)

    def forward(self, table: Tensor) -> Tensor:
        gated = self.values(table) * torch.sigmoid(self.gates(table))
        return self.out(torch.relu(self.hidden(gated)))  # type: ignore[no-any-return]


def text_cnn(data: DataSet) -> nn.Module:
    """Convolutions of two lengths side by side over tokens (Kim 2014)."""
    paths = [nn.Sequential(nn.Conv1d(10, 8, size, padding=size // 2), nn.ReLU()) for size in (1, 5)]
    head = [nn.Flatten(), nn.Linear(16 * data.length, 16), nn.ReLU(), nn.Linear(16, data.classes)]
    return nn.Sequential(nn.Embedding(data.vocabulary, 10), Swap(), Branches(paths), *head)


def lstm(data: DataSet) -> nn.Module:
    """An LSTM and two linear layers."""
    read = Last(nn.LSTM(8, 12, batch_first=True))
    head = [nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, data.classes)]
    return nn.Sequential(nn.Embedding(data.vocabulary, 8), read, *head)


def dilated(data: DataSet) -> nn.Module:
    """Convolutions with growing gaps over a signal (WaveNet)."""
    inner = [nn.Sequential(nn.Conv1d(8, 8, 3, padding=gap, dilation=gap), nn.ReLU()) for gap in (2, 4)]
    blocks = map(Residual, inner)
    return nn.Sequential(
        nn.Conv1d(data.channels, 8, 3, padding=1), nn.ReLU(), *blocks, Mean(2), nn.Linear(8, data.classes)
    )


def framed(data: DataSet) -> nn.Module:
    """A signal cut into frames, as a filter bank does, then a linear head."""
    cut = [nn.Conv1d(data.channels, 8, 8, 8), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*cut, nn.Linear(48, 12), nn.ReLU(), nn.Linear(12, data.classes))


def signal_transformer(data: DataSet) -> nn.Module:
    """Frames of a signal as tokens of a small transformer."""
    frames = nn.Sequential(nn.Conv1d(data.channels, 8, 6, 6), Swap())
    blocks = [TransformerBlock(8, 2, 12, nn.ReLU()) for _ in range(2)]
    return nn.Sequential(PositionEmbedding(frames, data.length // 6, 8), *blocks, Mean(1), nn.Linear(8, data.classes))


BY_HAND: dict[Callable[[DataSet], nn.Module], tuple[str, int]] = {
    lenet: ("image", 300),
    one_look: ("image", 500),
    fire: ("image", 400),
    inverted: ("image", 250),
    thin_residual: ("image", 300),
    hourglass: ("table", 700),
    Towers: ("table", 700),
    Gated: ("table", 900),
    text_cnn: ("tokens", 400),
    lstm: ("tokens", 250),
    dilated: ("signal", 400),
    framed: ("signal", 700),
    signal_transformer: ("signal", 250),
}
"""With the kind of input, and the budget in steps."""


def cases() -> Iterator[dict[str, Any]]:
    """Yield the cases of the first data set of all families, then those of the second."""
    drawn = UNSEEN()
    half = len(drawn) // DATA_SETS
    for turn in range(DATA_SETS):
        for case in drawn[turn * half : (turn + 1) * half]:
            yield {
                "name": case.name,
                "family": case.family,
                "module": case.module,
                **{split: _pair(case, split) for split in ("train", "validation", "test")},
                "steps": case.steps,
                "batchSize": case.batch_size,
                "optimizer": case.optimizer.to_json(),
            }
        for make, (kind, steps) in BY_HAND.items():
            data = inputs_of(KINDS[kind][turn], SEED)
            name = make.__name__.lower()
            yield {
                "name": f"{name}-{data.name}",
                "family": name,
                "module": _seeded(make, data),
                **{split: _pair(data, split) for split in ("train", "validation", "test")},
                "steps": steps,
                "batchSize": BATCH_SIZE,
                "optimizer": {"name": "Adam", "learningRate": 0.01},
            }


def _pair(owner: Any, split: str) -> tuple[Any, Any]:
    found = getattr(owner, split)
    return found.inputs, found.targets


def _seeded(make: Callable[[DataSet], nn.Module], data: DataSet) -> Callable[[int], nn.Module]:
    def module(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return make(data)

    return module
