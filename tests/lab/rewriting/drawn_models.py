"""Random models made of parts in which rules hold: for images, and for rows of numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from rewriting_cases import Written
from torch import Tensor, nn
from torch.nn import functional

WIDTH = 4


def _written(forward: Callable[[nn.Module, Tensor], Tensor], **parts: nn.Module | Tensor) -> nn.Module:
    return Written(forward, **parts)


def _branches() -> nn.Module:
    one, two, three = (nn.Conv2d(WIDTH, width, 1) for width in (1, 2, 1))
    return _written(lambda m, x: torch.cat([m.a(x).relu(), m.b(x), m.c(x).tanh()], 1), a=one, b=two, c=three)


def _reparametrised() -> nn.Module:
    large, small = nn.Conv2d(WIDTH, WIDTH, 3, padding=1), nn.Conv2d(WIDTH, WIDTH, 1, bias=False)
    return _written(lambda m, x: functional.relu(m.a(x) + m.b(x) + x, inplace=True), a=large, b=small)


def _twice() -> nn.Module:
    return _written(lambda m, x: m.a(x) * torch.sigmoid(m.a(x)) + x, a=nn.Conv2d(WIDTH, WIDTH, 3, padding=1))


def _enlarged() -> nn.Module:
    def forward(m: nn.Module, x: Tensor) -> Tensor:
        return functional.max_pool2d(m.a(functional.interpolate(x, scale_factor=2)), 2)

    return _written(forward, a=nn.Conv2d(WIDTH, WIDTH, 1))


def _changed_in_place() -> nn.Module:
    def forward(m: nn.Module, x: Tensor) -> Tensor:
        y = m.a(x)
        y += x
        return y.relu_() + y

    return _written(forward, a=nn.Conv2d(WIDTH, WIDTH, 1))


IMAGE_PARTS: dict[str, Callable[[], nn.Module]] = {
    "branches": _branches,
    "reparametrised": _reparametrised,
    "twice": _twice,
    "enlarged": _enlarged,
    "in place": _changed_in_place,
    "batch norm": lambda: nn.BatchNorm2d(WIDTH),
    "dropout": lambda: nn.Dropout2d(0.3),
    "grouped": lambda: nn.Conv2d(WIDTH, WIDTH, 3, padding=1, groups=2),
}


def _norm_by_hand() -> nn.Module:
    def forward(m: nn.Module, x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        normed = centred / torch.sqrt((centred * centred).mean(-1, keepdim=True) + 1e-5)
        return normed * m.scale + m.shift

    return _written(forward, scale=torch.rand(WIDTH) + 0.5, shift=torch.randn(WIDTH))


def _attention() -> nn.Module:
    def forward(m: nn.Module, x: Tensor) -> Tensor:
        q, k, v = m.q(x), m.k(x), m.v(x)
        return x + functional.softmax(q @ k.transpose(-2, -1) / 2, -1) @ v

    return _written(forward, **{name: nn.Linear(WIDTH, WIDTH) for name in "qkv"})


def _gelu() -> nn.Module:
    return _written(lambda m, x: 0.5 * x * (1 + torch.erf(x / math.sqrt(2))))


def _by_hand() -> nn.Module:
    return _written(lambda m, x: x @ m.w.T + m.b, w=torch.randn(WIDTH, WIDTH), b=torch.randn(WIDTH))


ROW_PARTS: dict[str, Callable[[], nn.Module]] = {
    "norm by hand": _norm_by_hand,
    "attention by hand": _attention,
    "gelu by hand": _gelu,
    "linear by hand": _by_hand,
    "chain": lambda: nn.Sequential(nn.Linear(WIDTH, 9), nn.Linear(9, WIDTH, bias=False)),
    "dropout": lambda: nn.Dropout(0.3),
    "swish": lambda: _written(lambda m, x: x * x.sigmoid()),
    "layer norm": lambda: nn.LayerNorm(WIDTH),
}


def image_model(parts: Sequence[str]) -> tuple[nn.Module, Tensor]:
    """Return a model of these parts with a late mean, and its inputs."""
    head = [nn.Conv2d(WIDTH, 6, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 8), nn.Linear(8, 3)]
    return nn.Sequential(*(IMAGE_PARTS[part]() for part in parts), *head), torch.randn(3, WIDTH, 5, 5)


def row_model(parts: Sequence[str]) -> tuple[nn.Module, Tensor]:
    """Return a model of these parts with a late mean, and its inputs."""
    head = _written(lambda m, x: m.a(x).mean(1), a=nn.Linear(WIDTH, 3))
    return nn.Sequential(*(ROW_PARTS[part]() for part in parts), head), torch.randn(3, 4, WIDTH)
