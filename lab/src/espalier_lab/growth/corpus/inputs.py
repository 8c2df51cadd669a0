"""Data sets that need no download, each made from its seed: images, tokens, tables, and signals.

They are small, and hard enough that a model of the wrong shape does worse. They say nothing about data of a real size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from espalier_lab.growth.judge.case import JudgeSplit

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]

TRAIN, VALIDATION, TEST = 1500, 400, 1200
"""Examples of the splits."""
CONTEXT: Final = 12
"""Tokens of an example."""
FEATURES: Final = 8
"""Columns of a table."""
SIDE: Final = 10
"""Pixels of an image's side."""
LENGTH: Final = 48
"""Samples of a signal."""


@dataclass(frozen=True, slots=True)
class DataSet:
    """One data set: its splits, and its properties for a model."""

    name: str
    kind: str
    """`image`: [1, side, side]. `tokens`: [context] integers. `table`: [features]. `signal`: [channels, length]."""
    classes: int
    """Outputs of a model: classes, or numbers of a regression."""
    vocabulary: int
    """Number of tokens; 0 for other kinds."""
    channels: int
    """Channels of images and signals, or columns of a table."""
    length: int
    """Side of an image, samples of a signal, tokens of a context; 1 for a table."""
    train: JudgeSplit
    validation: JudgeSplit
    test: JudgeSplit


def _made(
    name: str,
    kind: str,
    inputs: npt.NDArray[np.generic],
    targets: Integers | npt.NDArray[np.floating],
    vocabulary: int = 0,
) -> DataSet:
    numbers = targets.dtype.kind == "f"
    if numbers:  # [N, numbers], each of about the same spread
        targets = ((targets - targets[:TRAIN].mean(0)) / targets[:TRAIN].std(0)).astype(np.float32)
    whole, wanted = torch.from_numpy(inputs), torch.from_numpy(targets)
    ends = (0, TRAIN, TRAIN + VALIDATION, TRAIN + VALIDATION + TEST)
    splits = [JudgeSplit(whole[a:b], wanted[a:b]) for a, b in pairwise(ends)]
    classes = targets.shape[1] if numbers else int(targets.max()) + 1
    tokens = kind == "tokens"
    channels = 1 if tokens else inputs.shape[1]
    return DataSet(name, kind, classes, vocabulary, channels, inputs.shape[-1] if kind != "table" else 1, *splits)


_ALL: Final = TRAIN + VALIDATION + TEST


def _digits(chance: np.random.Generator) -> DataSet:
    """Handwritten digits of 8×8 pixels, shifted on a noisy ground; digits of the test split occur in no other split."""
    from sklearn.datasets import load_digits

    found = load_digits()
    order = np.random.default_rng(0).permutation(len(found.images))
    held = np.split(order, [1000, 1250])
    rows = np.concatenate(
        [chance.choice(part, size) for part, size in zip(held, (TRAIN, VALIDATION, TEST), strict=True)]
    )
    images = chance.normal(0, 0.1, (_ALL, 1, SIDE, SIDE)).astype(np.float32)
    for place, row in enumerate(rows):
        y, x = chance.integers(0, 3, 2)
        images[place, 0, y : y + 8, x : x + 8] += (found.images[row] / 16).astype(np.float32)
    return _made("digits", "image", images, found.target[rows].astype(np.int64))


def _shapes(chance: np.random.Generator) -> DataSet:
    """Outlines at random places and of random sizes: seven kinds, and noise."""
    images = chance.normal(0, 0.2, (_ALL, 1, SIDE, SIDE)).astype(np.float32)
    kinds = chance.integers(0, 7, _ALL)
    for place, kind in enumerate(kinds):
        size = int(chance.integers(4, 8))
        y, x = chance.integers(0, SIDE - size + 1, 2)
        image = images[place, 0, y : y + size, x : x + size]
        last, middle = size - 1, size // 2
        along = np.arange(size)
        if kind == 0:
            image[[0, last], :] += 1
            image[:, [0, last]] += 1
        elif kind == 1:
            image[middle, :] += 1
            image[:, middle] += 1
        elif kind == 2:
            image[along, along] += 1
            image[along, last - along] += 1
        elif kind == 3:
            image[along, along] += 1
        elif kind == 4:
            image[along, last - along] += 1
        elif kind == 5:
            image[[0, last], :] += 1
        else:
            image[0, :] += 1
            image[:, middle] += 1
    return _made("shapes", "image", images, kinds.astype(np.int64))


def _characters(chance: np.random.Generator) -> DataSet:
    """The next character of a text about Espalier, after twelve; the test split is the end of the text."""
    text = files(__package__).joinpath("text.txt").read_text(encoding="ascii")
    letters = sorted(set(text))
    codes = np.array([letters.index(letter) for letter in text], dtype=np.int64)
    parts = ((0, 0.7, TRAIN), (0.7, 0.8, VALIDATION), (0.8, 1.0, TEST))
    starts = np.concatenate(
        [
            chance.integers(int(low * len(codes)), int(high * len(codes)) - CONTEXT - 1, size)
            for low, high, size in parts
        ]
    )
    rows = starts[:, None] + np.arange(CONTEXT + 1)
    inputs, targets = codes[rows][:, :CONTEXT], codes[rows][:, CONTEXT]
    made = _made("characters", "tokens", np.ascontiguousarray(inputs), targets, len(letters))
    return made


def _recall(chance: np.random.Generator) -> DataSet:
    """The token after a marker at a random place."""
    inputs = chance.integers(1, 8, (_ALL, CONTEXT))
    marked = chance.integers(0, CONTEXT - 1, _ALL)
    rows = np.arange(_ALL)
    inputs[rows, marked] = 0
    return _made("recall", "tokens", inputs.astype(np.int64), (inputs[rows, marked + 1] - 1).astype(np.int64), 8)


def _balance(chance: np.random.Generator) -> DataSet:
    """The nesting depth of a sequence of brackets: a count over all earlier tokens."""
    inputs = chance.choice([0, 1, 2, 3], (_ALL, CONTEXT), p=[0.35, 0.35, 0.15, 0.15])
    steps = np.where(inputs == 0, 1, np.where(inputs == 1, -1, 0))
    depth = np.cumsum(steps, axis=1).max(axis=1)
    return _made("balance", "tokens", inputs.astype(np.int64), np.clip(depth, 0, 5).astype(np.int64), 4)


def _teacher(chance: np.random.Generator) -> DataSet:
    """A table whose classes come from a random network with two hidden layers."""
    inputs = chance.normal(0, 1, (_ALL, FEATURES)).astype(np.float32)
    hidden = np.tanh(inputs @ chance.normal(0, 0.6, (FEATURES, 12)))
    hidden = np.tanh(hidden @ chance.normal(0, 0.7, (12, 12)))
    return _made("teacher", "table", inputs, (hidden @ chance.normal(0, 1, (12, 5))).argmax(1).astype(np.int64))


def _products(chance: np.random.Generator) -> DataSet:
    """A table whose classes depend on products and waves of its columns."""
    inputs = chance.normal(0, 1, (_ALL, FEATURES)).astype(np.float32)
    score = inputs[:, 0] * inputs[:, 1] + np.sin(2 * inputs[:, 2]) + 0.3 * inputs[:, 3]
    return _made("products", "table", inputs, np.digitize(score, np.quantile(score, [0.25, 0.5, 0.75])))


def _tones(chance: np.random.Generator) -> DataSet:
    """One of six tones in noise, at any phase, for a part of the time."""
    kinds = chance.integers(0, 6, _ALL)
    times = np.arange(LENGTH)
    waves = np.sin(times * (0.25 + 0.22 * kinds[:, None]) + chance.uniform(0, 6.3, (_ALL, 1)))
    begins = chance.integers(0, LENGTH // 2, (_ALL, 1))
    sounding = (times >= begins) & (times < begins + LENGTH // 2)
    signals = waves * sounding + chance.normal(0, 0.7, (_ALL, LENGTH))
    return _made("tones", "signal", signals[:, None].astype(np.float32), kinds.astype(np.int64))


def _events(chance: np.random.Generator) -> DataSet:
    """The order of three pulses of different forms on two channels."""
    signals = chance.normal(0, 0.35, (_ALL, 2, LENGTH)).astype(np.float32)
    forms = [np.hanning(6), -np.hanning(6), np.sin(np.linspace(0, 2 * np.pi, 6))]
    orders = [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)]
    kinds = chance.integers(0, 6, _ALL)
    for place, kind in enumerate(kinds):
        starts = np.sort(chance.choice(LENGTH // 6, 3, replace=False)) * 6
        for start, form in zip(starts, orders[kind], strict=True):
            signals[place, form % 2, start : start + 6] += 1.5 * forms[form]
    return _made("events", "signal", signals, kinds.astype(np.int64))


def _field(chance: np.random.Generator) -> DataSet:
    """A table whose two numbers come from a random network with two hidden layers, with noise."""
    inputs = chance.normal(0, 1, (_ALL, FEATURES)).astype(np.float32)
    hidden = np.tanh(inputs @ chance.normal(0, 0.6, (FEATURES, 16)))
    hidden = np.tanh(hidden @ chance.normal(0, 0.7, (16, 16)))
    numbers = hidden @ chance.normal(0, 1, (16, 2))
    return _made("field", "table", inputs, numbers + chance.normal(0, 0.1, numbers.shape))


def _waves(chance: np.random.Generator) -> DataSet:
    """A table whose number is a sum of products and waves of its columns."""
    inputs = chance.normal(0, 1, (_ALL, FEATURES)).astype(np.float32)
    number = inputs[:, 0] * inputs[:, 1] + np.sin(2 * inputs[:, 2]) + 0.3 * inputs[:, 3]
    return _made("waves", "table", inputs, number[:, None] + chance.normal(0, 0.1, (_ALL, 1)))


def _spot(chance: np.random.Generator) -> DataSet:
    """Place and size of a bright spot, beside a dark one."""
    places, along = chance.uniform(2, SIDE - 3, (2, _ALL, 2, 1)), np.arange(SIDE)
    sizes = chance.uniform(0.8, 2, (2, _ALL, 1))
    ys, xs = (np.exp(-(((along - places[:, :, axis]) / sizes) ** 2)) for axis in (0, 1))
    spots = ys[..., :, None] * xs[..., None, :]
    images = (spots[0] - spots[1] + chance.normal(0, 0.2, (_ALL, SIDE, SIDE))).astype(np.float32)
    return _made("spot", "image", images[:, None], np.concatenate([places[0, :, :, 0], sizes[0]], 1))


def _area(chance: np.random.Generator) -> DataSet:
    """The area of a rectangle's intersection with another one, both drawn as outlines."""
    images = chance.normal(0, 0.1, (_ALL, 1, SIDE, SIDE)).astype(np.float32)
    areas = np.zeros((_ALL, 1))
    for place in range(_ALL):
        corners = chance.integers(0, SIDE - 4, (2, 2))
        ends = corners + chance.integers(3, 5, (2, 2))
        for (y, x), (below, right) in zip(corners, ends, strict=True):
            images[place, 0, [y, below], x : right + 1] = 1
            images[place, 0, y : below + 1, [x, right]] = 1
        areas[place] = np.prod(np.maximum(0, ends.min(0) - corners.max(0)) + 1)
    return _made("area", "image", images, areas)


def _total(chance: np.random.Generator) -> DataSet:
    """The sum of the tokens since the last marker."""
    inputs = np.where(chance.random((_ALL, CONTEXT)) < 0.15, 0, chance.integers(1, 8, (_ALL, CONTEXT)))
    since = np.cumsum((inputs == 0)[:, ::-1], 1)[:, ::-1] == 0
    return _made("total", "tokens", inputs.astype(np.int64), (inputs * since).sum(1, keepdims=True) * 1.0, 8)


def _pitch(chance: np.random.Generator) -> DataSet:
    """Pitch and loudness of a tone in noise."""
    pitch, loud, phase = (chance.uniform(low, high, (_ALL, 1)) for low, high in ((0.2, 1.4), (0.5, 2), (0, 6.3)))
    waves = loud * np.sin(np.arange(LENGTH) * pitch + phase) + chance.normal(0, 0.5, (_ALL, LENGTH))
    return _made("pitch", "signal", waves[:, None].astype(np.float32), np.concatenate([pitch, loud], 1))


MAKERS: Final[dict[str, Callable[[np.random.Generator], DataSet]]] = {
    "digits": _digits,
    "shapes": _shapes,
    "characters": _characters,
    "recall": _recall,
    "balance": _balance,
    "teacher": _teacher,
    "products": _products,
    "tones": _tones,
    "events": _events,
    "field": _field,
    "waves": _waves,
    "spot": _spot,
    "area": _area,
    "total": _total,
    "pitch": _pitch,
}
KINDS: Final = {
    "image": ("digits", "shapes"),
    "tokens": ("characters", "recall", "balance"),
    "table": ("teacher", "products"),
    "signal": ("tones", "events"),
}
NUMBERS: Final = {"image": ("spot", "area"), "tokens": ("total",), "table": ("field", "waves"), "signal": ("pitch",)}
"""Data sets of regressions by kind of input."""


@cache
def inputs_of(name: str, seed: int = 0) -> DataSet:
    """Return a data set, the same for the same seed; raise `KeyError` for an unknown name."""
    return MAKERS[name](np.random.default_rng([seed, *name.encode()]))
