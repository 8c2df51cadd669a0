"""Splits as sources of batches, and the order of their examples.

Small data sets live in memory as whole tensors, on the training device: a batch is one indexing operation (some
tens of µs), where a `DataLoader` with workers costs more than a step of a small network.

The order is a permutation for each (seed, epoch), and a cursor in it that can be checkpointed.
"""

from __future__ import annotations

from collections.abc import Callable, Sized
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, default_collate

from espalier_core.types.task import Task
from espalier_trainer.errors import DatasetError

Augmentation = Callable[[Tensor, np.random.Generator], Tensor]
"""Function that changes a batch of inputs [N, ...] at random; all random numbers come from the generator, so that it is
reproducible."""


class Source(Protocol):
    """One split."""

    def __len__(self) -> int:
        """Return the number of examples."""

    def batch(self, indices: Tensor, chance: np.random.Generator | None) -> tuple[Tensor, Tensor]:
        """Return (inputs [N, ...], targets) of the examples; augmented when `chance` is given.

        Targets are labels [N] int64, for regression numbers [N, K] float32, for a text the next tokens [N, T] int64.
        """

    def to(self, device: torch.device) -> Source:
        """Return the source with its batches on `device`."""


@dataclass(frozen=True, slots=True)
class TensorSource:
    """A split in memory: inputs [N, ...], labels [N]. Inputs of 8 bits are pixels and divided by 255; other integers
    are numbers of tokens or categories, and become int64.
    """

    inputs: Tensor
    labels: Tensor
    mean: Tensor | None = None
    """Mean that is subtracted from a batch; broadcastable to [C, H, W]."""
    std: Tensor | None = None
    """Standard deviation by which it is then divided."""
    augmentation: Augmentation | None = None
    place: str = "training.dataset"

    def __post_init__(self) -> None:
        if len(self.inputs) != len(self.labels):
            raise DatasetError(
                f"{self.place}: {len(self.inputs)} inputs, but {len(self.labels)} labels; there must be one each"
            )

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, indices: Tensor, chance: np.random.Generator | None) -> tuple[Tensor, Tensor]:
        """Return the examples at `indices`, as `Source.batch`."""
        indices = indices.to(self.labels.device)
        inputs = self.inputs[indices]
        if not inputs.is_floating_point():
            inputs = inputs.float().div_(255) if inputs.dtype is torch.uint8 else inputs.long()
        if self.mean is not None:
            inputs = inputs - self.mean
        if self.std is not None:
            inputs = inputs / self.std
        if self.augmentation is not None and chance is not None:
            inputs = self.augmentation(inputs, chance)
        return inputs, self.labels[indices]

    def to(self, device: torch.device) -> TensorSource:
        """Return the same split on `device`."""

        def moved(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else tensor.to(device)

        return TensorSource(
            self.inputs.to(device),
            self.labels.to(device),
            moved(self.mean),
            moved(self.std),
            self.augmentation,
            self.place,
        )


def check_targets(targets: Tensor, classes: int | None, task: Task, place: str) -> None:
    """Raise `DatasetError` unless `targets` fit `task`; see `check_labels`."""
    if task is Task.REGRESSION:
        if not targets.is_floating_point() or targets.ndim not in (1, 2):
            raise DatasetError(
                f"{place}: targets are {targets.dtype} of shape {tuple(targets.shape)}; for a Regression they must be "
                "floats of shape [N] or [N, K]"
            )
        if classes is not None and targets.ndim > 1 and targets.shape[1] != classes:
            raise DatasetError(f"{place}: has {targets.shape[1]} numbers for an example, other splits have {classes}")
        if not bool(torch.isfinite(targets).all()):
            raise DatasetError(f"{place}: a target is not a finite number; leave that example out")
    elif task is Task.LANGUAGE_MODEL:
        if targets.is_floating_point() or targets.ndim != 2:
            raise DatasetError(
                f"{place}: targets are {targets.dtype} of shape {tuple(targets.shape)}; for a LanguageModel they must "
                "be tokens: integers of shape [N, T]"
            )
        check_labels(targets.reshape(-1), classes, place)
    else:
        check_labels(targets, classes, place)


def check_labels(labels: Tensor, classes: int | None, place: str) -> None:
    """Raise `DatasetError` unless `labels` are class numbers; `classes` None: all from 0. `place` names the split."""
    if labels.is_floating_point() or labels.ndim != 1:
        raise DatasetError(
            f"{place}: labels are {labels.dtype} of shape {tuple(labels.shape)}; "
            "they must be class numbers: integers of shape [N]"
        )
    labels = labels.to(torch.int64)  # unsigned ones of more than 8 bits cannot be compared
    wrong = labels < 0 if classes is None else (labels < 0) | (labels >= classes)
    if bool(wrong.any()):
        allowed = "from 0" if classes is None else f"from 0 to {classes - 1}, as there are {classes} classes"
        raise DatasetError(f"{place}: a label is {int(labels[wrong][0])}; labels must be class numbers {allowed}")


@dataclass(frozen=True, slots=True)
class MapSource:
    """A split of a user's map-style `torch.utils.data.Dataset`: read one by one, collated, moved.

    The labels of each batch are checked: checking the whole data set would mean reading it first.
    """

    dataset: Dataset[Any]
    device: torch.device | None = None
    classes: int | None = None
    place: str = "training.dataset"
    task: Task = Task.CLASSIFICATION

    def __len__(self) -> int:
        return len(cast(Sized, self.dataset))

    def batch(self, indices: Tensor, chance: np.random.Generator | None) -> tuple[Tensor, Tensor]:
        """Return the examples at `indices`; augmentation is the task of the user's data set.

        Raises `DatasetError` for labels that are not class numbers.
        """
        examples = [self.dataset[index] for index in indices.tolist()]
        inputs, labels = default_collate(examples)
        labels = torch.as_tensor(labels)
        if self.task is Task.REGRESSION:
            labels = labels.to(torch.float32).reshape(len(labels), -1)
        check_targets(labels, self.classes, self.task, self.place)
        if self.task is not Task.REGRESSION:
            labels = labels.to(torch.int64)
        return inputs.to(self.device), labels.to(self.device)

    def to(self, device: torch.device) -> MapSource:
        """Return the same split with its batches on `device`."""
        return replace(self, device=device)


@dataclass(frozen=True, slots=True)
class Data:
    """The three splits of a data set."""

    name: str
    train: Source
    validation: Source
    """Split held out of the training data, for the evaluation after each epoch. Never the test split."""
    test: Source
    """Split used once, when the budget is exhausted."""
    classes: int
    """Number of classes, of different tokens of a text, or of numbers to predict for an example."""
    task: Task = Task.CLASSIFICATION

    def __post_init__(self) -> None:
        for split in ("train", "validation", "test"):
            if len(getattr(self, split)) == 0:
                raise DatasetError(f"training.dataset: {self.name}: the {split} split is empty")

    def to(self, device: torch.device) -> Data:
        """Return the data with its batches on `device`."""
        moved = {name: getattr(self, name).to(device) for name in ("train", "validation", "test")}
        return replace(self, **moved)

    def example_input(self) -> Tensor:
        """Return the first two training inputs: [2, ...], an example input of a model for this data."""
        indices = torch.arange(min(2, len(self.train)))
        return self.train.batch(indices, None)[0]


def flip_batch(inputs: Tensor, chance: np.random.Generator) -> Tensor:
    """Mirror the whole batch [N, C, H, W] left to right with probability 1/2."""
    return inputs.flip(-1) if chance.random() < 0.5 else inputs


def channel_statistics(inputs: Tensor, chunk: int = 4096) -> tuple[Tensor, Tensor]:
    """Return (mean, std) of each channel of images [N, C, H, W], as [C, 1, 1]; integer images are divided by 255.

    Sums are computed in float64 and in chunks, so that large sets need no second copy.
    """
    scale = 1.0 if inputs.is_floating_point() else 255.0
    channels = inputs.shape[1]
    total = torch.zeros(channels, dtype=torch.float64)
    squares = torch.zeros(channels, dtype=torch.float64)
    count = 0
    for start in range(0, len(inputs), chunk):
        part = inputs[start : start + chunk].to(torch.float64).div(scale)
        total += part.sum((0, 2, 3))
        squares += part.square().sum((0, 2, 3))
        count += part.numel() // channels
    mean = total / count
    std = (squares / count - mean.square()).clamp_min(0).sqrt()
    std = torch.where(std > 0, std, torch.ones_like(std))
    return mean.to(torch.float32).view(-1, 1, 1), std.to(torch.float32).view(-1, 1, 1)


@dataclass(frozen=True, slots=True)
class TokenSource:
    """Windows of `context` tokens, each with the tokens that follow; `windows` of them are an epoch.

    The windows of an epoch are spread evenly over the text. In training each batch moves all of its windows by one
    random distance, so that every part of the text is used; in evaluation they stay in place.
    """

    tokens: Tensor
    """Tokens of the whole text, int32 [L]."""
    context: int
    windows: int
    characters_per_token: float = 1.0
    """Mean number of characters per token of this text, to convert bits per token into bits per character."""

    def __post_init__(self) -> None:
        if len(self.tokens) <= self.context:
            raise DatasetError(
                f"training.dataset.options.context: is {self.context}, and a split of the text has {len(self.tokens)} "
                "tokens; a window and the token after it must fit: use a smaller context or more text"
            )

    def __len__(self) -> int:
        return self.windows

    def batch(self, indices: Tensor, chance: np.random.Generator | None) -> tuple[Tensor, Tensor]:
        """Return (tokens [N, context], the tokens that follow each [N, context]), int64."""
        places = len(self.tokens) - self.context  # where a window can begin
        moved = 0 if chance is None else int(chance.integers(places))
        starts = (indices.to(self.tokens.device) * places // self.windows + moved) % places
        within = torch.arange(self.context + 1, device=self.tokens.device)
        picked = self.tokens[starts[:, None] + within].long()
        return picked[:, :-1], picked[:, 1:]

    def to(self, device: torch.device) -> TokenSource:
        """Return the same split on `device`."""
        return replace(self, tokens=self.tokens.to(device))


@dataclass(frozen=True, slots=True)
class EpochOrder:
    """The batches of one epoch; batch i is the same on every worker, before and after a restart.

    An incomplete last batch is left out (other examples each epoch): a batch norm over a handful of examples is
    noise. A split smaller than a batch is one batch.
    """

    indices: Tensor
    """The permutation, int64."""
    batch_size: int
    seed: int
    epoch: int

    def __len__(self) -> int:
        """Return the number of batches."""
        return max(1, len(self.indices) // self.batch_size)

    @property
    def rows(self) -> int:
        """Number of examples in a batch."""
        return min(self.batch_size, len(self.indices))

    def chosen(self, cursor: int, rows: slice = slice(None), batches: int = 1) -> Tensor:
        """Return the indices of `batches` batches from `cursor` on, or of `rows` of them."""
        return self.indices[cursor * self.batch_size : (cursor + batches) * self.batch_size][rows]

    def batch(self, source: Source, cursor: int, rows: slice = slice(None), batches: int = 1) -> tuple[Tensor, Tensor]:
        """Return `batches` batches of `source` from `cursor` on, or `rows` of them, augmented with the random numbers
        of batch `cursor` only.
        """
        chance = np.random.default_rng((self.seed, self.epoch, cursor, 1))
        return source.batch(self.chosen(cursor, rows, batches), chance)


def epoch_order(examples: int, batch_size: int, seed: int, epoch: int, device: torch.device) -> EpochOrder:
    """Return the order of `examples` examples in `epoch`, its indices on `device`."""
    permutation = np.random.default_rng((seed, epoch)).permutation(examples)
    return EpochOrder(torch.from_numpy(permutation).to(device), batch_size, seed, epoch)
