"""`cifar8`: CIFAR-10 average-pooled to 8x8, one flip coin a batch, standardised: a data set for one CPU core.

The splits are those of `cifar10`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from espalier_api.job import DatasetSpec
from espalier_trainer.data.cifar10 import VALIDATION
from espalier_trainer.data.source import Data, flip_batch
from espalier_trainer.data.splitting import build, to_tensors
from espalier_trainer.data.torchvision_sets import load_arrays
from espalier_trainer.errors import DatasetError

SIZE = 8


def load(spec: DatasetSpec) -> Data:
    """Return CIFAR-10 at 8x8; inputs [N, 3, 8, 8]."""
    arrays = load_arrays(spec, "cifar10")
    train, test = (_pooled(*to_tensors(arrays.splits[split])) for split in ("train", "test"))
    augmentation = flip_batch if spec.options.get("flip", True) else None
    return build("cifar8", train, test, 10, min(VALIDATION, len(train[1]) // 10), augmentation)


def _pooled(images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return images [N, 3, H, W] uint8 averaged over blocks to [N, 3, 8, 8] in [0, 1]."""
    height, width = images.shape[-2:]
    if height % SIZE or width % SIZE:
        raise DatasetError(f"training.dataset: cifar8 pools images to {SIZE}x{SIZE}; {width}x{height} is no multiple")
    chunks = [
        torch.nn.functional.avg_pool2d(chunk.to(torch.float32) / 255, (height // SIZE, width // SIZE))
        for chunk in torch.split(images, 5_000)
    ]
    return torch.cat(chunks), labels
