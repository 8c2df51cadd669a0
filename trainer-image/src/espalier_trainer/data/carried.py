"""The data sets that the package contains, the same as scikit-learn's: no download, no file.

`digits`: 1,797 images of 8x8 pixels. Grey values /16; the order is `RandomState(0)`'s permutation; standardised by
the mean and standard deviation of the first 1,297. Of these the first 1,097 train and the last 200 validate; the
last 500 of all test. Source: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI repository, CC
BY 4.0.

`diabetes`: 442 patients, for regression. Ten measurements predict the progression of the disease a year later. Inputs
and targets are standardised by the training split, so the root mean squared error is in standard deviations of the
targets. Source: B. Efron, T. Hastie, I. Johnstone and R. Tibshirani, Least Angle Regression, 2004.
"""

from __future__ import annotations

from importlib.resources import as_file, files

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from espalier_core.types.job import DatasetSpec
from espalier_core.types.task import Task
from espalier_trainer.data.images import HELD_OUT_SEED
from espalier_trainer.data.source import Data, TensorSource


def digits(spec: DatasetSpec) -> Data:
    """Return the digits; inputs [N, 1, 8, 8]."""
    train, validation = 1097, 200
    table = _table("digits.csv.gz", ",")
    order = np.random.RandomState(0).permutation(len(table))
    inputs = torch.tensor(table[order, :-1].reshape(-1, 1, 8, 8), dtype=torch.float32) / 16
    known = inputs[: train + validation]
    labels = torch.tensor(table[order, -1].astype(np.int64))
    return Data("digits", *_split((inputs - known.mean()) / known.std(), labels, train, validation), classes=10)


def diabetes(spec: DatasetSpec) -> Data:
    """Return the patients; inputs [N, 10], targets [N, 1]."""
    train, validation = 302, 70
    found, wanted = _table("diabetes_data_raw.csv.gz"), _table("diabetes_target.csv.gz")
    order = np.random.RandomState(HELD_OUT_SEED).permutation(len(wanted))
    inputs, targets = (torch.tensor(values[order], dtype=torch.float32) for values in (found, wanted[:, None]))
    inputs, targets = ((values - values[:train].mean(0)) / values[:train].std(0) for values in (inputs, targets))
    return Data("diabetes", *_split(inputs, targets, train, validation), classes=1, task=Task.REGRESSION)


def _split(
    inputs: Tensor, targets: Tensor, train: int, validation: int
) -> tuple[TensorSource, TensorSource, TensorSource]:
    """Return the splits for training, validation and testing, which gets the rest."""

    def part(start: int, stop: int | None) -> TensorSource:
        return TensorSource(inputs[start:stop], targets[start:stop])

    return part(0, train), part(train, train + validation), part(train + validation, None)


def _table(name: str, delimiter: str | None = None) -> NDArray[np.float64]:
    """Return the numbers of a file in `samples/`."""
    with as_file(files(__package__) / "samples" / name) as path:
        return np.loadtxt(path, delimiter=delimiter)
