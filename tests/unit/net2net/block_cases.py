"""Handwritten models of residual blocks, as users write them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from espalier_trainer.net2net.modules import ExampleInput

WIDTH, VOCABULARY, LENGTH = 16, 11, 7


class Attention(nn.Module):
    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=bias)
        self.out = nn.Linear(WIDTH, WIDTH, bias=bias)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        weights = (q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])).masked_fill(mask, -torch.inf).softmax(-1)
        return self.drop(self.out((weights @ v).transpose(1, 2).flatten(2)))


class GPTBlock(nn.Module):
    """Pre-LN: attention and an MLP, with a mask as a positional argument and a scale by keyword."""

    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention(bias)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH, bias=bias), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH, bias=bias), nn.Dropout(0.1)
        )

    def forward(self, x: Tensor, mask: Tensor, *, positions: Tensor) -> Tensor:
        x = x + self.attention(self.ln1(x) + positions, mask)
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    """A character model whose blocks are in a ModuleList, with a count of them and a causal mask."""

    def __init__(self, blocks: int = 3, bias: bool = True) -> None:
        super().__init__()
        self.n_layer = blocks
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(GPTBlock(bias) for _ in range(blocks))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)
        self.register_buffer("mask", torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1))
        self.positions = nn.Parameter(torch.randn(LENGTH, WIDTH))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for index in range(self.n_layer):
            x = self.blocks[index](x, self.mask, positions=self.positions)
        return self.head(self.norm(x))


class Looped(nn.Module):
    """A list of blocks that is run three times, as in a universal transformer."""

    def __init__(self, blocks: int = 2) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Scaled() for _ in range(blocks))
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            for block in self.blocks:
                x = block(x)
        return self.head(x)


class Scaled(nn.Module):
    """Pre-LN MLP with LayerScale, which is what closes it: a dropout and a norm come after the last projection."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH, elementwise_affine=False)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.gamma = nn.Parameter(torch.full((WIDTH,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.gamma * self.after(self.down(functional.silu(self.up(self.norm(x)))))


class BasicBlock(nn.Module):
    """A residual convolution block: the gamma and beta of its last batch norm close it."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.bn2(self.conv2(functional.relu(self.bn1(self.conv1(x))))) + x)


class MixerBlock(nn.Module):
    """MLP-Mixer: one MLP over tokens, one over channels."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.tokens = nn.Sequential(nn.Linear(LENGTH, 8), nn.GELU(), nn.Linear(8, LENGTH))
        self.channels = nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Linear(32, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norm2(x))


class PostNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x + self.down(functional.gelu(self.up(x))))


def resnet(blocks: int = 2) -> nn.Module:
    """A stem, a stage in the same Sequential as the stem and the head, so that the new block stands in the middle."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), *(BasicBlock(8) for _ in range(blocks)),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5),
    )  # fmt: skip


def staged() -> nn.Module:
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU()),
        nn.Sequential(BasicBlock(8), BasicBlock(8)),
        nn.Flatten(),
    )


def mixer(blocks: int = 2) -> nn.Module:
    return nn.Sequential(
        nn.Sequential(*(MixerBlock() for _ in range(blocks))), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3)
    )


def encoder(norm_first: bool = True) -> nn.Module:
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 32, norm_first=norm_first, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def tokens() -> Tensor:
    return torch.randint(VOCABULARY, (2, LENGTH), generator=torch.Generator().manual_seed(1))


def vectors() -> Tensor:
    return torch.randn(2, LENGTH, WIDTH, generator=torch.Generator().manual_seed(1))


def images() -> Tensor:
    return torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))


@dataclass(frozen=True)
class Case:
    """A model, an input, and the id of the run of blocks to continue."""

    build: Callable[[], nn.Module]
    example: Callable[[], ExampleInput]
    run: str


CASES: dict[str, Case] = {
    "gpt": Case(GPT, tokens, "blocks.0"),
    "gpt of one block": Case(lambda: GPT(1), tokens, "blocks.0"),
    "gpt without biases": Case(lambda: GPT(2, bias=False), tokens, "blocks.0"),
    "looped": Case(Looped, vectors, "blocks.0"),
    "resnet": Case(resnet, images, "3"),
    "resnet of one block": Case(lambda: resnet(1), images, "3"),
    "staged": Case(staged, images, "1.0"),
    "mixer": Case(mixer, vectors, "0.0"),
    "layer scale": Case(lambda: nn.Sequential(Scaled(), Scaled()), vectors, "0"),
    "torch encoder": Case(encoder, vectors, "layers.0"),
}


def outputs(model: nn.Module, example: Any, *, training: bool) -> Tensor:
    """Run a model; draws of dropout come from one seed."""
    model.train(training)
    torch.manual_seed(5)
    with torch.no_grad():
        found: Tensor = model(example)
    return found
