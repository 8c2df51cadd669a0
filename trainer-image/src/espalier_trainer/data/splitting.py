"""From arrays of images to training, validation and test splits."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from espalier_trainer.data.images import ImageArrays, Split
from espalier_trainer.data.source import Augmentation, Data, TensorSource, channel_statistics
from espalier_trainer.errors import DatasetError

HELD_OUT_SEED = 0
"""The validation examples do not depend on the job's seed, so that accuracies of two seeds are comparable."""


def to_tensors(split: Split) -> tuple[Tensor, Tensor]:
    """Return (images [N, C, H, W] uint8, labels [N] int64)."""
    images = torch.from_numpy(np.ascontiguousarray(split.images.transpose(0, 3, 1, 2)))
    return images, torch.from_numpy(split.labels)


def held_out(examples: int, count: int) -> tuple[Tensor, Tensor]:
    """Return the (training, validation) indices: validation is the last `count` of `RandomState(0)`'s permutation."""
    order = torch.from_numpy(np.random.RandomState(HELD_OUT_SEED).permutation(examples))
    return order[: examples - count], order[examples - count :]


def build(
    name: str,
    train: tuple[Tensor, Tensor],
    test: tuple[Tensor, Tensor],
    classes: int,
    validation: tuple[Tensor, Tensor] | int,
    augmentation: Augmentation | None = None,
) -> Data:
    """Return the data, standardised by the training split's channel statistics.

    `validation` is a split, or the number of training examples to hold out for it.
    """
    inputs, labels = train
    if isinstance(validation, int):
        keep, hold = held_out(len(labels), validation)
        validation = (inputs[hold], labels[hold])
        inputs, labels = inputs[keep], labels[keep]
    mean, std = channel_statistics(inputs)
    return Data(
        name,
        TensorSource(inputs, labels, mean, std, augmentation),
        TensorSource(*validation, mean, std),
        TensorSource(*test, mean, std),
        classes,
    )


def from_image_splits(name: str, arrays: ImageArrays, augmentation: Augmentation | None) -> Data:
    """Return the data of any image folder; one without splits is divided 80/10/10.

    Without a validation split a tenth of the training split is held out; without a test split the validation split
    is halved.
    """
    splits = {split: to_tensors(part) for split, part in arrays.splits.items()}
    if set(splits) == {""}:
        inputs, labels = splits[""]
        count = len(labels) // 10
        keep, hold = held_out(len(labels), 2 * count)
        splits = {
            "train": (inputs[keep], labels[keep]),
            "validation": (inputs[hold[:count]], labels[hold[:count]]),
            "test": (inputs[hold[count:]], labels[hold[count:]]),
        }
    if "train" not in splits:
        raise DatasetError(f"training.dataset: {name}: has {', '.join(splits)} but no train folder")
    if "test" not in splits:
        if "validation" not in splits:
            raise DatasetError(f"training.dataset: {name}: has a train folder, but neither validation nor test")
        inputs, labels = splits["validation"]
        half, rest = held_out(len(labels), len(labels) // 2)
        splits["validation"], splits["test"] = (inputs[half], labels[half]), (inputs[rest], labels[rest])
    train = splits["train"]
    return build(
        name,
        train,
        splits["test"],
        len(arrays.classes),
        splits.get("validation", max(1, len(train[1]) // 10)),
        augmentation,
    )
