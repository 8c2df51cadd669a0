"""A data set: horizontal and vertical stripes, drawn when it is loaded."""

from __future__ import annotations

import torch

from espalier_core.types.job import DatasetSpec
from espalier_trainer.data import Data, TensorSource


def load(spec: DatasetSpec) -> Data:
    """Return 8×8 images of two classes; the option `examples` says how many each split has."""
    count = int(spec.options.get("examples", 64))
    chance = torch.Generator().manual_seed(0)

    def split() -> TensorSource:
        labels = torch.randint(2, (count,), generator=chance)
        rows = (torch.rand(count, 1, 8, 1, generator=chance) > 0.5).float().expand(count, 1, 8, 8)
        return TensorSource(torch.where(labels[:, None, None, None] == 0, rows, rows.transpose(2, 3)), labels)

    return Data(name="stripes", train=split(), validation=split(), test=split(), classes=2)
