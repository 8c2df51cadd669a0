"""Layers of the designs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional


class Residual(nn.Module):
    """x + body(x), followed by an optional activation."""

    def __init__(self, body: nn.Module, activation: nn.Module | None = None) -> None:
        super().__init__()
        self.body = body
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum."""
        total = x + self.body(x)
        return total if self.activation is None else self.activation(total)  # type: ignore[no-any-return]


class Branches(nn.Module):
    """Several paths side by side, joined along the channels."""

    def __init__(self, paths: Sequence[nn.Module]) -> None:
        super().__init__()
        self.paths = nn.ModuleList(paths)

    def forward(self, x: Tensor) -> Tensor:
        """Return all outputs, one after the other in dimension 1."""
        return torch.cat([path(x) for path in self.paths], 1)


class Dense(nn.Module):
    """Joins its input to the output of its body (DenseNet)."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        """Return both, in dimension 1."""
        return torch.cat([x, self.body(x)], 1)


class Mean(nn.Module):
    """The mean over places: pixels or samples of [N, C, ...], or tokens of [N, T, C]."""

    def __init__(self, *dimensions: int) -> None:
        super().__init__()
        self.dimensions = dimensions

    def forward(self, x: Tensor) -> Tensor:
        """Return [N, C]."""
        return x.mean(self.dimensions)


class Swap(nn.Module):
    """Exchanges the last two dimensions."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the transposed tensor."""
        return x.transpose(1, 2)


class Patches(nn.Module):
    """An image [N, C, S, S] as tokens [N, T, width]: a strided convolution."""

    def __init__(self, channels: int, width: int, size: int) -> None:
        super().__init__()
        self.cut = nn.Conv2d(channels, width, size, size)

    def forward(self, x: Tensor) -> Tensor:
        """Return the tokens."""
        return self.cut(x).flatten(2).transpose(1, 2)  # type: ignore[no-any-return]


class PositionEmbedding(nn.Module):
    """Tokens, with a learnt vector added to each place."""

    def __init__(self, tokens: nn.Module, count: int, width: int) -> None:
        super().__init__()
        self.tokens = tokens
        self.weight = nn.Parameter(0.02 * torch.randn(count, width))

    def forward(self, x: Tensor) -> Tensor:
        """Return [N, T, width]."""
        return self.tokens(x) + self.weight  # type: ignore[no-any-return]


class TokenAttention(nn.Module):
    """Self-attention over tokens."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.read = nn.Linear(width, 3 * width)
        self.write = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return [N, T, width]."""
        n, t, width = x.shape
        read = self.read(x).view(n, t, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        found = functional.scaled_dot_product_attention(read[0], read[1], read[2])
        return self.write(found.transpose(1, 2).reshape(n, t, width))  # type: ignore[no-any-return]


class TransformerBlock(nn.Module):
    """Attention and two linear layers, each with a norm before and added to its input."""

    def __init__(self, width: int, heads: int, hidden: int, activation: nn.Module) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = TokenAttention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.wider = nn.Linear(width, hidden)
        self.activation = activation
        self.narrower = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return [N, T, width]."""
        x = x + self.attention(self.norm1(x))
        return x + self.narrower(self.activation(self.wider(self.norm2(x))))  # type: ignore[no-any-return]


class MixerBlock(nn.Module):
    """Two linear layers over tokens, then two over channels (MLP-Mixer)."""

    def __init__(self, tokens: int, width: int, hidden: int, activation: nn.Module) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.tokens1, self.tokens2 = nn.Linear(tokens, hidden), nn.Linear(hidden, tokens)
        self.norm2 = nn.LayerNorm(width)
        self.channels1, self.channels2 = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        """Return [N, T, width]."""
        mixed = self.tokens2(self.activation(self.tokens1(self.norm1(x).transpose(1, 2))))
        x = x + mixed.transpose(1, 2)
        return x + self.channels2(self.activation(self.channels1(self.norm2(x))))  # type: ignore[no-any-return]


class Last(nn.Module):
    """A recurrent layer's output at the last token."""

    def __init__(self, recurrent: nn.Module) -> None:
        super().__init__()
        self.recurrent = recurrent

    def forward(self, x: Tensor) -> Tensor:
        """Return [N, width]."""
        return self.recurrent(x)[0][:, -1]  # type: ignore[no-any-return]
