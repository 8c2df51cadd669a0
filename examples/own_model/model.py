"""A model and data of your own; replace both. Here: which of two spirals is a point on?"""

import torch
from torch import Tensor, nn


def net(width: int = 8) -> nn.Module:
    """The starting model. It returns logits: a row an example, a column a class."""
    return nn.Sequential(nn.Linear(2, width), nn.ReLU(), nn.Linear(width, 2))


def data(count: int = 4000) -> tuple[tuple[Tensor, Tensor], ...]:
    """The splits for training, validation and test: inputs and class numbers each."""
    chance = torch.Generator().manual_seed(0)
    labels = torch.arange(count) % 2
    turns = torch.rand(count, generator=chance)
    angles = 12 * turns + torch.pi * labels
    points = torch.stack([turns * angles.cos(), turns * angles.sin()], 1)
    points += 0.01 * torch.randn(points.shape, generator=chance)
    half, most = count // 2, 3 * count // 4
    return tuple((points[part], labels[part]) for part in (slice(half), slice(half, most), slice(most, count)))
