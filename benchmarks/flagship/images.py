"""The images: CIFAR-10 at 32x32, a ResNet whose three stages are runs of blocks."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from espalier_core.types.job import DatasetSpec
from espalier_core.types.task import Task
from espalier_core.validation.reading import load_job, with_spec
from espalier_trainer.data import load_data
from espalier_trainer.data.source import Data, TensorSource
from flagship.arms import Arm, StepCost
from flagship.subject import Subject

EPOCH_IMAGES: Final = 512
"""16 steps."""


@dataclass(frozen=True, slots=True)
class Drawn(TensorSource):
    """A training split of short epochs: in each, `EPOCH_IMAGES` images are drawn, each time from all."""

    def __len__(self) -> int:
        return EPOCH_IMAGES

    def batch(self, indices: Tensor, chance: np.random.Generator | None) -> tuple[Tensor, Tensor]:
        """Return as many images as there are indices: other ones in each epoch, if `chance` is given."""
        if chance is not None:
            indices = torch.from_numpy(chance.integers(len(self.labels), size=len(indices)))
        return TensorSource.batch(self, indices, chance)

    def to(self, device: torch.device) -> Drawn:
        """Return the same split on `device`."""
        return drawn(TensorSource.to(self, device))


def drawn(source: TensorSource) -> Drawn:
    """Return a split with short epochs."""
    parts: dict[str, Any] = {part.name: getattr(source, part.name) for part in fields(source)}
    return Drawn(**parts)


def load(spec: DatasetSpec, task: Task) -> Data:
    """Return the data with short epochs of the training split."""
    data = load_data(spec, task)
    if not isinstance(data.train, TensorSource):
        raise TypeError(f"{data.name}: the training split is no tensor in memory")
    return replace(data, train=drawn(data.train))


def cifar(path: str | None) -> Subject:
    """Return what `cifar.py` trains, with the data at `path`."""
    job = load_job(Path(__file__).parent / "resnet.yaml")
    return Subject(
        name="cifar",
        job=with_spec(job, training={"dataset": {"path": path}}),
        runs=("stages.0.0", "stages.1.0", "stages.2.0"),
        cost=StepCost(0.0019, 0.00104),
        measure="error",
        short="error",
        kept={Arm.INITIALISED: ("stem.", "between.", "head.")},
        first_rate=0.008,
        figure=lambda accuracy: 1 - accuracy,
        load=load,
    )
