"""`mnist`: 28x28 grey, standardised. Of the 60,000 training images 5,000 are held out for validation."""

from __future__ import annotations

from espalier_api.job import DatasetSpec
from espalier_trainer.data.source import Data
from espalier_trainer.data.splitting import build, to_tensors
from espalier_trainer.data.torchvision_sets import load_arrays

VALIDATION = 5_000


def load(spec: DatasetSpec) -> Data:
    """Return MNIST; inputs [N, 1, 28, 28]."""
    arrays = load_arrays(spec, "mnist")
    train, test = to_tensors(arrays.splits["train"]), to_tensors(arrays.splits["test"])
    return build("mnist", train, test, 10, min(VALIDATION, len(train[1]) // 10))
