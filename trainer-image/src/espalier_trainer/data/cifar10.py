"""`cifar10`: 32x32 RGB, one flip coin a batch (`options.flip: false` turns it off), standardised.

Of the 50,000 training images 5,000 are held out for validation. (Lamelas 6.2 validates on the test split; here
the test split is looked at once, at the end.)
"""

from __future__ import annotations

from espalier_api.job import DatasetSpec
from espalier_trainer.data.source import Data, flip_batch
from espalier_trainer.data.splitting import build, to_tensors
from espalier_trainer.data.torchvision_sets import load_arrays

VALIDATION = 5_000


def load(spec: DatasetSpec) -> Data:
    """Return CIFAR-10; inputs [N, 3, 32, 32]."""
    arrays = load_arrays(spec, "cifar10")
    train, test = to_tensors(arrays.splits["train"]), to_tensors(arrays.splits["test"])
    augmentation = flip_batch if spec.options.get("flip", True) else None
    return build("cifar10", train, test, 10, min(VALIDATION, len(train[1]) // 10), augmentation)
