"""`digits`: 1,797 images of 8x8 pixels, the same as scikit-learn's. The package contains them: no download, no file.

Source: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI repository, CC BY 4.0.

Grey values /16; the order is `RandomState(0)`'s permutation; standardised by the mean and standard deviation of
the first 1,297. Of these the first 1,097 train and the last 200 validate; the last 500 of all test.
"""

from __future__ import annotations

from importlib.resources import as_file, files

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
    """Return (images [1797, 8, 8] of 0..16, digits [1797])."""
    table = table_of("digits.csv.gz", ",")
    return table[:, :-1].reshape(-1, 8, 8), table[:, -1].astype(np.int64)


def table_of(name: str, delimiter: str | None = None) -> NDArray[np.float64]:
    """Return the numbers of a file in `samples/`."""
    with as_file(files(__package__) / "samples" / name) as path:
        return np.loadtxt(path, delimiter=delimiter)
