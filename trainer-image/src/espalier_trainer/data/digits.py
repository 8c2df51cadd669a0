"""`digits`: scikit-learn's 1,797 bundled images of 8x8 pixels. No download, no file.

Grey values /16; the order is `RandomState(0)`'s permutation; standardised by the mean and standard deviation of
the first 1,297. Of these the first 1,097 train and the last 200 validate; the last 500 of all test.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from espalier_core.types.job import DatasetSpec
from espalier_trainer.data.source import Data, TensorSource

TRAIN, VALIDATION, TEST = 1097, 200, 500


def load(spec: DatasetSpec) -> Data:
    """Return the digits; inputs [N, 1, 8, 8]."""
    images, targets = _read()
    order = np.random.RandomState(0).permutation(len(targets))
    inputs = torch.tensor(images[order], dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(targets[order], dtype=torch.int64)
    known = inputs[: TRAIN + VALIDATION]
    inputs = (inputs - known.mean()) / known.std()

    def part(start: int, stop: int) -> TensorSource:
        return TensorSource(inputs[start:stop], labels[start:stop])

    return Data(
        "digits",
        part(0, TRAIN),
        part(TRAIN, TRAIN + VALIDATION),
        part(TRAIN + VALIDATION, TRAIN + VALIDATION + TEST),
        classes=10,
    )


def _read() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return (images [1797, 8, 8] of 0..16, digits [1797]).

    The file in scikit-learn's package is read directly: importing the package takes 2 to 3 s at each start.
    """
    package = importlib.util.find_spec("sklearn")
    for folder in (package.submodule_search_locations or []) if package else []:
        file = Path(folder) / "datasets" / "data" / "digits.csv.gz"
        if file.is_file():
            table = np.loadtxt(file, delimiter=",")
            return table[:, :-1].reshape(-1, 8, 8), table[:, -1].astype(np.int64)
    from sklearn.datasets import load_digits

    digits = load_digits()
    return digits.images, digits.target.astype(np.int64)
