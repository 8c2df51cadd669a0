"""Models for judging rewriting, small enough for a CPU, with one batch each."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import torch
from torch import Tensor, nn

from espalier_trainer.models.gpt import gpt
from espalier_trainer.models.zoo import cifar8
from espalier_trainer.net2net import deepen, growth_points

Net = tuple[nn.Module, Tensor]
"""A model and one batch of its inputs."""

_GROWTHS: Final = 4


class HandBlock(nn.Module):
    """A transformer's block with norm, attention and GELU written out, and a linear chain."""

    def __init__(self, width: int, heads: int) -> None:
        """Create it for tokens of `width` numbers, a multiple of `heads`."""
        super().__init__()
        self.heads = heads
        self.scale, self.shift = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.wide, self.narrow = nn.Linear(width, 8 * width), nn.Linear(8 * width, width)
        self.expand, self.project = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return the next states [N, T, width]."""
        centred = x - x.mean(-1, keepdim=True)
        normed = centred / torch.sqrt((centred**2).mean(-1, keepdim=True) + 1e-5) * self.scale + self.shift
        query, key, value = (self._split(layer(normed)) for layer in (self.query, self.key, self.value))
        scores = torch.softmax(query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1]), -1)
        mixed = (scores @ value).transpose(1, 2).reshape(x.shape)
        x = x + self.narrow(self.wide(mixed))
        hidden = self.expand(x)
        new: Tensor = x + self.project(0.5 * hidden * (1 + torch.erf(hidden / math.sqrt(2))))
        return new

    def _split(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], x.shape[1], self.heads, -1).transpose(1, 2)


class Handwritten(nn.Module):
    """Code of a user who does not know torch's fused operators: blocks by hand, and a mean after the head."""

    def __init__(self, width: int = 64, heads: int = 4, blocks: int = 2, classes: int = 10) -> None:
        """Create it for tokens of `width` numbers."""
        super().__init__()
        self.blocks = nn.Sequential(*(HandBlock(width, heads) for _ in range(blocks)))
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits [N, classes] of tokens [N, T, width]."""
        logits: Tensor = self.head(self.blocks(x)).mean(1)
        return logits


class Reparametrised(nn.Module):
    """RepVGG's branches without norms: conv3×3 + conv1×1 + identity, then a norm (Ding et al. 2021)."""

    def __init__(self, width: int) -> None:
        """Create it for `width` channels, which it keeps."""
        super().__init__()
        self.large, self.small = nn.Conv2d(width, width, 3, padding=1), nn.Conv2d(width, width, 1)
        self.norm = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        """Return images of the same size."""
        return torch.relu(self.norm(self.large(x) + self.small(x) + x))


def torchvision_net(name: str, pixels: int, **options: object) -> Callable[[], Net]:
    """Return a builder of one of torchvision's models with ten classes, and four images of `pixels` by `pixels`."""

    def build() -> Net:
        from torchvision import models  # half a second to import, so only for the nets that need it

        return models.get_model(name, weights=None, num_classes=10, **options), torch.randn(4, 3, pixels, pixels)

    return build


def _vit() -> Net:
    from torchvision.models import VisionTransformer

    model = VisionTransformer(32, 4, 4, 4, 128, 256, num_classes=10)
    return model, torch.randn(8, 3, 32, 32)


def repvgg(widths: Sequence[int] = (32, 64, 128), blocks: int = 2, pixels: int = 64) -> Net:
    """Return a net with a stage of `blocks` for each width."""
    stages = [
        nn.Sequential(nn.Conv2d(before, width, 3, stride=2, padding=1), *(Reparametrised(width) for _ in range(blocks)))
        for before, width in itertools.pairwise((3, *widths))
    ]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], 10)]
    return nn.Sequential(*stages, *head), torch.randn(8, 3, pixels, pixels)


def _grown() -> Net:
    model, images = cifar8(), torch.randn(64, 3, 8, 8)
    for _ in range(_GROWTHS):
        model = deepen(model, growth_points(model, images)[0].id, images)
    return model, images


NETS: Final[Mapping[str, Callable[[], Net]]] = {
    "handwritten": lambda: (Handwritten(), torch.randn(16, 64, 64)),
    "repvgg-like": repvgg,
    "cifar8 grown": _grown,
    "gpt": lambda: (gpt(65, 64, width=128, heads=4, blocks=4), torch.randint(0, 65, (16, 64))),
    "vit": _vit,
    "squeezenet": torchvision_net("squeezenet1_1", 96),
    "resnet18": torchvision_net("resnet18", 64),
    "resnet50": torchvision_net("resnet50", 64),
    "inception": torchvision_net("inception_v3", 96, aux_logits=False, init_weights=False),
}
"""Models by name, those with the most applicable rules first; `torch.manual_seed` determines weights and inputs."""
