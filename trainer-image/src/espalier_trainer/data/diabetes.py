"""`diabetes`: 442 patients, for regression, the same as scikit-learn's. The package contains them: no download.

Ten measurements of a patient predict the progression of the disease a year later. Inputs and targets are standardised
by the training split, so the root mean squared error is in standard deviations of the targets.
Source: B. Efron, T. Hastie, I. Johnstone and R. Tibshirani, Least Angle Regression, 2004.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from espalier_core.types.job import DatasetSpec
from espalier_core.types.task import Task
from espalier_trainer.data.digits import table_of
from espalier_trainer.data.images import HELD_OUT_SEED
from espalier_trainer.data.source import Data, TensorSource

TRAIN, VALIDATION = 302, 70


def load(spec: DatasetSpec) -> Data:
    """Return the patients; inputs [N, 10], targets [N, 1]."""
    found, wanted = _read()
    order = np.random.RandomState(HELD_OUT_SEED).permutation(len(wanted))
    inputs = _standardised(torch.tensor(found[order], dtype=torch.float32))
    targets = _standardised(torch.tensor(wanted[order], dtype=torch.float32).unsqueeze(1))

    def part(start: int, stop: int | None) -> TensorSource:
        return TensorSource(inputs[start:stop], targets[start:stop])

    return Data(
        "diabetes",
        part(0, TRAIN),
        part(TRAIN, TRAIN + VALIDATION),
        part(TRAIN + VALIDATION, None),
        classes=1,
        task=Task.REGRESSION,
    )


def _standardised(values: Tensor) -> Tensor:
    known = values[:TRAIN]
    return (values - known.mean(0)) / known.std(0)


def _read() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return (measurements [442, 10], progression of the disease [442])."""
    return table_of("diabetes_data_raw.csv.gz"), table_of("diabetes_target.csv.gz")
