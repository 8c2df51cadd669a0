"""A data set of the user's: `entrypoint: package.module:function` returning (train, validation, test)."""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from espalier_core.types.job import DatasetSpec
from espalier_core.types.task import Task
from espalier_trainer.data.source import Data, MapSource, Source, TensorSource, check_targets
from espalier_trainer.errors import DatasetError
from espalier_trainer.process.entrypoint import call_entrypoint, load_entrypoint

_FIELD = "training.dataset.entrypoint"


def load(spec: DatasetSpec, task: Task = Task.CLASSIFICATION) -> Data:
    """Call the function with `path` (when the job gives one) and the options.

    Each split is a pair (inputs, targets) of tensors or arrays, a `TensorDataset` of two, a map-style data set whose
    items are (input, target), or an `IterableDataset` of these, which is read once, into memory. For a classification,
    targets are labels; for a regression numbers [N] or [N, K]; for a language model inputs are tokens [N, T] and
    targets the tokens that follow each. In memory, inputs of 8 bits that are not tokens are pixels, divided by 255;
    other integers stay, truths become 0.0 and 1.0, and NumPy's 64-bit floats, its default, 32-bit ones.

    The number of classes (or tokens) is the function's `classes` attribute where it has one, otherwise one more than
    the largest label (or token) of the in-memory splits; for numbers it is K.
    """
    path = spec.entrypoint or ""
    function = load_entrypoint(path, _FIELD, DatasetError)
    options = dict(spec.options)
    if spec.path is not None:
        options["path"] = spec.path
    splits = call_entrypoint(function, path, _FIELD, options, DatasetError)
    if not isinstance(splits, tuple | list) or len(splits) != 3:
        raise DatasetError(
            f"{_FIELD}: {path} returned {type(splits).__name__}; it must return (train, validation, test)"
        )
    train, validation, test = (
        _source(split, f"{_FIELD}: {path}: {name}", task)
        for split, name in zip(splits, ("train", "validation", "test"), strict=True)
    )
    given = getattr(function, "classes", None)
    classes = _classes((train, validation, test), path, task) if given is None else _number(given, path)
    for source, name in ((train, "train"), (validation, "validation"), (test, "test")):
        if isinstance(source, TensorSource):
            check_targets(source.labels, classes, task, f"{_FIELD}: {path}: {name}")
    train, validation, test = (
        replace(source, classes=classes) if isinstance(source, MapSource) else source
        for source in (train, validation, test)
    )
    return Data(path, train, validation, test, classes, task)


def _source(split: Any, place: str, task: Task) -> Source:
    if isinstance(split, TensorDataset):
        split = split.tensors
    if isinstance(split, tuple | list) and len(split) == 2:
        inputs, labels = (_tensor(part, place) for part in split)
        if inputs.dtype is torch.bool:
            inputs = inputs.float()
        elif inputs.dtype is torch.uint8 and task is Task.LANGUAGE_MODEL:
            inputs = inputs.short()  # tokens
        if labels.numel() == 0:
            raise DatasetError(f"{place} split is empty; it must hold at least one example")
        check_targets(labels, None, task, place)
        if task is Task.REGRESSION:
            return TensorSource(inputs, labels.to(torch.float32).reshape(len(labels), -1), place=place)
        return TensorSource(inputs, labels.to(torch.int64), place=place)
    if isinstance(split, IterableDataset):
        # In memory it has an order, which resuming needs and which all workers know.
        return MapSource(cast("Dataset[Any]", list(split)), place=place, task=task)
    if isinstance(split, Dataset):
        if not isinstance(split, Sized) or not hasattr(split, "__getitem__"):
            raise DatasetError(
                f"{place}: {type(split).__name__} lacks __len__ or __getitem__; use a map-style data set, or an "
                "IterableDataset that ends"
            )
        return MapSource(split, place=place, task=task)
    raise DatasetError(f"{place}: {type(split).__name__}; allowed: (inputs, labels), a TensorDataset, or a Dataset")


def _tensor(part: Any, place: str) -> Tensor:
    try:
        found = torch.as_tensor(part)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DatasetError(
            f"{place}: {type(part).__name__} cannot be a tensor ({error}); return tensors, or arrays of numbers"
        ) from error
    return found.float() if found.dtype is torch.float64 and not isinstance(part, Tensor) else found


def _classes(sources: tuple[Source, ...], path: str, task: Task) -> int:
    labels: list[Tensor] = [source.labels for source in sources if isinstance(source, TensorSource)]
    if labels and task is Task.REGRESSION:
        return labels[0].shape[1]
    if not labels:
        raise DatasetError(
            f"{_FIELD}: {path}: the number of classes is unknown; set it on the function: "
            f"{path.partition(':')[2]}.classes = 10"
        )
    return 1 + max(int(part.max()) for part in labels)


def _number(classes: Any, path: str) -> int:
    """Return the number of classes from the function's attribute."""
    if not isinstance(classes, int) or classes < 1:
        raise DatasetError(f"{_FIELD}: {path}: its attribute classes is {classes!r}; it must be a whole number from 1")
    return classes
