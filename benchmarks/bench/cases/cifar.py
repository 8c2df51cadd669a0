"""A residual net that grows, compared with fixed depths under the same time budget, on CIFAR-10.

The protocol of `gpt`, for images of 32x32 pixels: a ResNet of three stages with 8, 16 and 32 channels
(`bench/flagship/resnet.yaml`). Its first convolution halves the height and the width. Arms:
  1, 2, 4 blocks          in each stage, all along; each with its own best learning rate, chosen on another seed
  1 → 4, unfolded copies  at the moment each stage is copied, one after the other within 32 steps, and again once it
                          has unfolded; no output changes at once
  1 → 4, scaled copies    each stage is copied twice at the moment, the last convolutions of its blocks divided by 4
  1 → 4, exact            at the moment three blocks a stage are added that change nothing at first
  a control               at the moment all blocks are initialised again, the rest is kept
Figures are the error (share of the images of the test split that are classified wrongly) at the end of the budget.
`--data` is a folder or an archive of images (train/<class>/*, test/<class>/*), or torchvision's copy. Takes an hour of
a core.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from bench import flagship
from bench.command import DATA
from bench.flagship.study import carried_out, options
from bench.flagship.subject import Arm, StepCost, Subject
from bench.printing import Parts
from espalier_core.types.job import DatasetSpec
from espalier_core.types.task import Task
from espalier_core.validation.reading import load_job, with_spec
from espalier_trainer.data import load_data
from espalier_trainer.data.source import Data, TensorSource

EPOCH_IMAGES: Final = 512
"""16 steps."""
KEEPS: Final = True
OPTIONS: Final = {**options(budgets=[40.0], moments=[0.2]), "data": DATA}
QUICK: Final = {"budgets": [1.5], "moments": [0.2], "seeds": 1, "rates": [0.004] * 3, "arms": [Arm.ONE, Arm.UNFOLDED]}


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
    """Return what is trained, with the data at `path`."""
    job = load_job(Path(flagship.__file__).with_name("resnet.yaml"))
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


class Block(nn.Module):
    """One residual block: norm, ReLU, convolution, twice."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.conv1, self.conv2 = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))

    def forward(self, images: Tensor) -> Tensor:
        """Return the next images [N, width, H, W]."""
        hidden = self.conv1(torch.relu(self.norm1(images)))
        added: Tensor = self.conv2(torch.relu(self.norm2(hidden)))
        return images + added


def narrowed(inputs: int, outputs: int) -> nn.Sequential:
    """Return what lies between two stages: half the height and width, other channels."""
    return nn.Sequential(
        nn.BatchNorm2d(inputs), nn.ReLU(), nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False)
    )


class ResNet(nn.Module):
    """Images [N, channels, H, W] to logits [N, classes]. The first convolution halves their height and width."""

    def __init__(self, classes: int, channels: int, widths: tuple[int, ...], blocks: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(channels, widths[0], 3, stride=2, padding=1, bias=False)
        self.stages = nn.ModuleList(nn.Sequential(*(Block(width) for _ in range(blocks))) for width in widths)
        self.between = nn.ModuleList(narrowed(*pair) for pair in pairwise(widths))
        last = widths[-1]
        self.head = nn.Sequential(
            nn.BatchNorm2d(last), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(last, classes)
        )

    def forward(self, images: Tensor) -> Tensor:
        """Return logits [N, classes]."""
        states = self.stages[0](self.stem(images))
        for between, stage in zip(self.between, list(self.stages)[1:], strict=True):
            states = stage(between(states))
        logits: Tensor = self.head(states)
        return logits


def resnet(classes: int = 10, channels: int = 3, width: int = 8, blocks: int = 1) -> nn.Module:
    """Return a net of three stages of `width`, twice and four times as many channels, with `blocks` blocks each."""
    return ResNet(classes, channels, (width, 2 * width, 4 * width), blocks)


def run(options: argparse.Namespace) -> Parts:
    """Make the runs, and give the tables."""
    yield from carried_out(cifar(options.data), options)
