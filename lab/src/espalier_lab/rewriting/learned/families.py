"""Families of models for learning; members differ in sizes, and so in the rewrites that pay."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Final

import torch
from torch import nn

from espalier_lab.rewriting.learned.nets import Handwritten, Net, repvgg, torchvision_net


def member(family: str, number: int) -> Net:
    """Return a member of one of `FAMILIES`; the number determines its sizes and weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(number)
        return FAMILIES[family](random.Random(number))


def _handwritten(draw: random.Random) -> Net:
    width, tokens = draw.choice((32, 48, 96)), draw.choice((16, 32, 64))
    model = Handwritten(width, draw.choice((2, 4)), draw.choice((1, 2, 3)))
    return model, torch.randn(draw.choice((4, 8, 16)), tokens, width)


def _repvgg(draw: random.Random) -> Net:
    widths = draw.choice(((16, 32), (48, 96), (24, 48, 96)))
    return repvgg(widths, blocks=draw.choice((1, 2, 3)), pixels=draw.choice((32, 48)))


def _squeezenet(draw: random.Random) -> Net:
    return torchvision_net(draw.choice(("squeezenet1_0", "squeezenet1_1")), draw.choice((64, 80, 128)))()


def _inception(draw: random.Random) -> Net:
    """Return a few of torchvision's Inception blocks after a convolution."""
    from torchvision.models.inception import InceptionA, InceptionC, InceptionE

    blocks: list[nn.Module] = []
    channels = start = draw.choice((32, 64))
    for _ in range(draw.choice((1, 2))):
        kind = draw.choice(("A", "C", "E"))
        if kind == "A":
            blocks.append(InceptionA(channels, pool_features=32))
            channels = 256
        elif kind == "C":
            blocks.append(InceptionC(channels, channels_7x7=64))
            channels = 768
        else:
            blocks.append(InceptionE(channels))
            channels = 2048
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10)]
    pixels = draw.choice((16, 24))
    return nn.Sequential(nn.Conv2d(3, start, 3, stride=2), *blocks, *head), torch.randn(4, 3, pixels, pixels)


FAMILIES: Final[Mapping[str, Callable[[random.Random], Net]]] = {
    "handwritten": _handwritten,
    "repvgg-like": _repvgg,
    "squeezenet": _squeezenet,
    "inception": _inception,
}
"""Families by the name of a related net in `NETS`. No member has that net's sizes."""
