"""Models of torchvision, and models of torch's own layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

import torch
from torch import Tensor, nn
from torchvision import models

TORCHVISION: Mapping[str, Callable[[], nn.Module]] = {
    "efficientnet_b0": lambda: models.efficientnet_b0(num_classes=5),
    "densenet, small": lambda: models.DenseNet(8, (3, 4, 3), 16, num_classes=5),
    "googlenet": lambda: models.googlenet(num_classes=5, init_weights=False),
    "mnasnet0_5": lambda: models.mnasnet0_5(num_classes=5),
    "mobilenet_v2": lambda: models.mobilenet_v2(num_classes=5),
    "mobilenet_v3_small": lambda: models.mobilenet_v3_small(num_classes=5),
    "regnet_x_400mf": lambda: models.regnet_x_400mf(num_classes=5),
    "resnet18": lambda: models.resnet18(num_classes=5),
    "resnet50": lambda: models.resnet50(num_classes=5, width_per_group=16),
    "shufflenet_v2_x0_5": lambda: models.shufflenet_v2_x0_5(num_classes=5),
    "squeezenet1_1": lambda: models.squeezenet1_1(num_classes=5),
    "vit_b_16": lambda: models.VisionTransformer(64, 16, 2, 2, 32, 64, num_classes=5),
    "deeplabv3_mobilenet_v3_large": lambda: models.segmentation.deeplabv3_mobilenet_v3_large(
        weights=None, weights_backbone=None, num_classes=5
    ),
}


class Bodies(nn.Module):
    """A module between a layer that makes channels and one that reads them."""

    def __init__(self, body: nn.Module, given: int = 8, made: int = 8) -> None:
        super().__init__()
        self.first = nn.Linear(4, given)
        self.body = body
        self.last = nn.Linear(made, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Return (batch, length, 3) for (batch, length, 4)."""
        found = self.body(self.first(x))
        return cast(Tensor, self.last(found[0] if isinstance(found, tuple) else found))


class Causal(nn.Module):
    """A transformer that masks the future."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(64, 16)
        self.blocks = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(16, 2, 24, batch_first=True, norm_first=True), 2, enable_nested_tensor=False
        )
        self.head = nn.Linear(16, 64)

    def forward(self, words: Tensor) -> Tensor:
        """Return (batch, length, 64) for words (batch, length)."""
        mask = nn.Transformer.generate_square_subsequent_mask(words.shape[1], device=words.device)
        embedded = self.embedding(words)
        return cast(Tensor, self.head(self.blocks(embedded, mask=mask.to(embedded.dtype), is_causal=True)))


def _encoder(*, norm_first: bool) -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=norm_first)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def _convolutions(kind: str) -> nn.Module:
    convolution, norm = getattr(nn, f"Conv{kind}"), getattr(nn, f"BatchNorm{kind}")
    return nn.Sequential(
        *(convolution(3, 8, 3, padding=1), norm(8), nn.ReLU(), convolution(8, 8, 3, padding=1), norm(8), nn.GELU()),
        convolution(8, 4, 1),
    )


TORCH_NN: Mapping[str, tuple[Callable[[], nn.Module], str]] = {
    "Linear, ReLU": (lambda: Bodies(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))), "rows"),
    "Linear, BatchNorm1d, GELU": (
        lambda: nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Linear(8, 3)), "vectors",
    ),
    "Conv1d": (lambda: _convolutions("1d"), "signal"),
    "Conv2d": (lambda: _convolutions("2d"), "picture"),
    "Conv3d": (lambda: _convolutions("3d"), "volume"),
    "ConvTranspose2d": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.ConvTranspose2d(8, 4, 2, 2), nn.ReLU(), nn.Conv2d(4, 2, 1)
        ),
        "picture",
    ),
    "GRU": (lambda: Bodies(nn.GRU(8, 8, batch_first=True)), "rows"),
    "LSTM": (lambda: Bodies(nn.LSTM(8, 8, num_layers=2, batch_first=True)), "rows"),
    "RNN": (lambda: Bodies(nn.RNN(8, 8, batch_first=True)), "rows"),
    "MultiheadAttention": (lambda: Bodies(_SelfAttention()), "rows"),
    "TransformerEncoder": (lambda: Bodies(_encoder(norm_first=True)), "rows"),
    "TransformerEncoder, post-norm": (lambda: Bodies(_encoder(norm_first=False)), "rows"),
    "TransformerEncoderLayer": (
        lambda: Bodies(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True)), "rows"
    ),
    "Transformer": (
        lambda: nn.Transformer(8, 2, 2, 2, 16, batch_first=True, norm_first=True), "two rows"
    ),
    "TransformerEncoder, causal": (Causal, "words"),
    "Embedding": (
        lambda: nn.Sequential(nn.Embedding(64, 8), nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 64)), "words"
    ),
    "Bilinear": (lambda: _Bilinear(), "rows"),
}  # fmt: skip


class _SelfAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, x + self.attention(x, x, x, need_weights=False)[0])


class _Bilinear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.pair = nn.Linear(4, 8), nn.Linear(4, 8), nn.Bilinear(8, 8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.pair(torch.relu(self.first(x)), torch.tanh(self.second(x))))
