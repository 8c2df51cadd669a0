"""Models in which each rule holds: a forward and its parameters, as a user writes them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

Build = Callable[[], nn.Module]


class Written(nn.Module):
    """A model whose forward is a function of it and one tensor."""

    def __init__(self, forward: Callable[[nn.Module, Tensor], Tensor], **parts: nn.Module | Tensor) -> None:
        super().__init__()
        self.written = forward
        for name, part in parts.items():
            if isinstance(part, nn.Module):
                self.add_module(name, part)
            elif part.is_floating_point():
                self.register_parameter(name, nn.Parameter(part))
            else:
                self.register_buffer(name, part)

    def forward(self, tensor: Tensor) -> Tensor:
        return self.written(self, tensor)


@dataclass(frozen=True)
class Case:
    """A model in which a rule holds, and the shape of its inputs."""

    rule: str
    build: Build
    shape: tuple[int, ...]
    name: str = ""

    def __str__(self) -> str:
        return f"{self.rule} {self.name}".strip()


IMAGES = (3, 4, 6, 6)
ROWS = (3, 5, 8)


def _norm(model: nn.Module, x: Tensor) -> Tensor:
    mean = x.mean(-1, keepdim=True)
    variance = (x - mean).pow(2).mean(-1, keepdim=True)
    return (x - mean) / torch.sqrt(variance + 1e-5)


def _norm_by_var(model: nn.Module, x: Tensor) -> Tensor:
    shifted = x - x.mean(dim=-1, keepdim=True)
    return shifted * torch.rsqrt(x.var(-1, unbiased=False, keepdim=True) + 1e-6)


def _heads(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return model.q(x), model.k(x), model.v(x)


def _attention(model: nn.Module, x: Tensor) -> Tensor:
    q, k, v = _heads(model, x)
    return torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(8), dim=-1) @ v


def _causal(model: nn.Module, x: Tensor) -> Tensor:
    q, k, v = _heads(model, x)
    scores = (q @ k.transpose(1, 2)) * 0.3
    scores = scores.masked_fill(model.later, float("-inf"))
    return functional.softmax(scores, dim=2) @ v


def _biased(model: nn.Module, x: Tensor) -> Tensor:
    q, k, v = _heads(model, x)
    return torch.matmul((q.matmul(k.transpose(-1, -2)) + model.bias.detach()).softmax(-1), v)


def _projections() -> dict[str, nn.Module | Tensor]:
    return {"q": nn.Linear(8, 8), "k": nn.Linear(8, 8), "v": nn.Linear(8, 8)}


def _cubic(model: nn.Module, x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * torch.pow(x, 3))))


def _three(model: nn.Module, x: Tensor) -> Tensor:
    return torch.cat([model.a(x).relu(), model.b(x), torch.sigmoid(model.c(x))], 1)


CASES = [
    Case("ActivationByHand", lambda: Written(lambda m, x: _gelu(m.a(x)), a=nn.Linear(8, 4)), ROWS, "gelu"),
    Case("ActivationByHand", lambda: Written(lambda m, x: _cubic(m, m.a(x)), a=nn.Linear(8, 4)), ROWS, "gelu by tanh"),
    Case("ActivationByHand", lambda: Written(lambda m, x: _swish(m.a(x)), a=nn.Linear(8, 4)), ROWS, "silu"),
    Case("AddedConvolutions", lambda: Written(lambda m, x: m.a(x) + m.b(x), a=nn.Conv2d(4, 5, 3, padding=1),
                                              b=nn.Conv2d(4, 5, 1, bias=False)), IMAGES),
    Case("AddedConvolutions", lambda: Written(lambda m, x: m.a(x) + m.b(x), a=nn.Conv2d(4, 4, 1, groups=2),
                                              b=nn.Conv2d(4, 4, (3, 5), padding=(1, 2), groups=2)), IMAGES, "grouped"),
    Case("AttentionByHand", lambda: Written(_attention, **_projections()), ROWS),
    Case("AttentionByHand", lambda: Written(_causal, **_projections(), later=torch.ones(5, 5).triu(1).bool()), ROWS,
         "causal"),
    Case("AttentionByHand", lambda: Written(_biased, **_projections(), bias=torch.randn(5, 5)), ROWS, "with a bias"),
    Case("Cancelling", lambda: Written(lambda m, x: m.a(x).relu().relu() + 0, a=nn.Linear(8, 8)), ROWS),
    Case("Cancelling", lambda: Written(lambda m, x: m.a(x).transpose(1, 2).transpose(2, 1), a=nn.Linear(8, 8)), ROWS,
         "transposes"),
    Case("ChainedLinears", lambda: nn.Sequential(nn.Linear(8, 32), nn.Linear(32, 3)), ROWS),
    Case("ChainedLinears", lambda: nn.Sequential(nn.Linear(8, 6, bias=False), nn.Linear(6, 3)), ROWS, "without a bias"),
    Case("ChannelsLast", lambda: nn.Sequential(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2),
                                               nn.Flatten(), nn.Linear(24, 3)), IMAGES),
    Case("ChannelsLast", lambda: nn.Sequential(nn.Conv2d(4, 6, 3), nn.Dropout(0.5), nn.ReLU(), nn.Conv2d(6, 2, 1)),
         IMAGES, "before dropout"),
    Case("CommonSubexpression", lambda: Written(lambda m, x: m.a(x) + m.a(x).relu(), a=nn.Conv2d(4, 5, 3)), IMAGES),
    Case("ConvolutionWithShortcut", lambda: Written(lambda m, x: (m.a(x) + x).relu(), a=nn.Conv2d(4, 4, 3, padding=1)),
         IMAGES),
    Case("LayerNormByHand", lambda: Written(lambda m, x: _norm(m, m.a(x)), a=nn.Linear(8, 6)), ROWS),
    Case("LayerNormByHand", lambda: Written(lambda m, x: _norm_by_var(m, m.a(x)), a=nn.Linear(8, 6)), ROWS, "by var"),
    Case("LayerNormWeights", lambda: Written(lambda m, x: m.scale * m.norm(x) + m.shift, scale=torch.randn(8),
                                             shift=torch.randn(8), norm=nn.LayerNorm(8, elementwise_affine=False)),
         ROWS),
    Case("LinearByHand", lambda: Written(lambda m, x: x @ m.weight.t() + m.bias, weight=torch.randn(4, 8),
                                         bias=torch.randn(4)), ROWS),
    Case("MeanFirst", lambda: Written(lambda m, x: m.a(x).mean((2, 3), keepdim=True), a=nn.Conv2d(4, 5, 1)), IMAGES),
    Case("MeanFirst", lambda: nn.Sequential(nn.Conv2d(4, 5, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()), IMAGES, "pool"),
    Case("MeanFirst", lambda: Written(lambda m, x: m.a(x).mean(1), a=nn.Linear(8, 3)), ROWS, "of a linear layer"),
    Case("MergedConvolutions", lambda: Written(_three, a=nn.Conv2d(4, 5, 1), b=nn.Conv2d(4, 2, 1),
                                               c=nn.Conv2d(4, 3, 1)), IMAGES),
    Case("MergedLinears", lambda: Written(_attention, **_projections()), ROWS),
    Case("UpsamplingLast", lambda: nn.Sequential(nn.Upsample(scale_factor=2, mode="bilinear"), nn.Conv2d(4, 3, 1)),
         IMAGES),
    Case("UpsamplingLast", lambda: Written(lambda m, x: m.a(functional.interpolate(x, scale_factor=3)),
                                           a=nn.Conv2d(4, 3, 1)), IMAGES, "nearest"),
]  # fmt: skip


def _gelu(x: Tensor) -> Tensor:
    return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))


def _swish(x: Tensor) -> Tensor:
    return x * x.sigmoid()
