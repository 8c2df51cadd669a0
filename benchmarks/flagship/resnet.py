"""A residual net of three stages for images, with pre-activation blocks (He et al. 2016, "Identity Mappings")."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn


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
