"""Layers as other people write them."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Transposed(nn.Module):
    """GPT-2's `Conv1D`: a linear layer whose weight is transposed."""

    def __init__(self, given: int, made: int) -> None:
        super().__init__()
        self.made = made
        self.weight = nn.Parameter(0.3 * torch.randn(given, made))
        self.bias = nn.Parameter(torch.zeros(made))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(*x.shape[:-1], self.made)
