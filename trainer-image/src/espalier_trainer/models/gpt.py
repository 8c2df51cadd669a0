"""A small language model of the GPT family: pre-norm blocks of causal attention and an MLP, no biases in its matrices.

Its blocks are children of one ModuleList, so `AddBlock` continues them, exactly or by scaled copies.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

DEVIATION = 0.02
"""Standard deviation of the initial weights (GPT-2)."""


class Attention(nn.Module):
    """Causal self-attention of several heads."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.read = nn.Linear(width, 3 * width, bias=False)
        self.project = nn.Linear(width, width, bias=False)

    def forward(self, states: Tensor) -> Tensor:
        """Return attention's output at each position [N, T, width], from that position and earlier ones."""
        examples, length, width = states.shape
        parts = self.read(states).view(examples, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
        dropout = self.dropout if self.training else 0.0
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
        projected: Tensor = self.project(mixed.transpose(1, 2).reshape(examples, length, width))
        return projected


class Block(nn.Module):
    """One residual block: attention, then a ReLU MLP of four times the width, each after its norm."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads, dropout)
        self.mlp_norm = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 4 * width, bias=False)
        self.project = nn.Linear(4 * width, width, bias=False)
        self.drop = nn.Dropout(dropout)

    def forward(self, states: Tensor) -> Tensor:
        """Return the next states [N, T, width]."""
        states = states + self.drop(self.attention(self.attention_norm(states)))
        hidden = nn.functional.relu(self.expand(self.mlp_norm(states)))
        new: Tensor = states + self.drop(self.project(hidden))
        return new


class GPT(nn.Module):
    """Tokens [N, T] to logits of the tokens that follow, [N, T, vocabulary]; T is at most `context`."""

    def __init__(self, vocabulary: int, context: int, width: int, heads: int, blocks: int, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(torch.empty(context, width))
        members = [Block(width, heads, dropout) for _ in range(blocks)]
        self.blocks = nn.ModuleList(members)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=DEVIATION)
        nn.init.normal_(self.places, std=DEVIATION)
        for block in members:
            for closing in (block.attention.project, block.project):
                # The sum of 2 * blocks branches keeps its magnitude (GPT-2).
                nn.init.normal_(closing.weight, std=DEVIATION / (2 * blocks) ** 0.5)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits [N, T, vocabulary]."""
        states = self.embedding(tokens) + self.places[: tokens.shape[1]]
        for block in self.blocks:
            states = block(states)
        logits: Tensor = self.head(self.norm(states))
        return logits


def gpt(
    classes: int,
    context: int = 64,
    width: int = 64,
    heads: int = 2,
    blocks: int = 1,
    dropout: float = 0.0,
) -> nn.Module:
    """Return a GPT for `classes` tokens. Raises `ValueError` where sizes do not fit."""
    if width < 1 or heads < 1 or width % heads:
        raise ValueError(f"width {width} is not a multiple of heads {heads}; each head needs an equal share")
    if blocks < 1 or context < 1 or not 0 <= dropout < 1:
        raise ValueError(f"blocks {blocks}, context {context}, dropout {dropout}: at least 1, 1, and in [0, 1)")
    return GPT(classes, context, width, heads, blocks, dropout)
