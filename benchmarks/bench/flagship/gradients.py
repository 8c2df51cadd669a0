"""Steps seen from the optimizer: the gradients of new blocks, and a warm-up of their steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

WINDOWS: Final = (0.01, 0.15, 1.0)
"""Shares of the budget, from the growth on, over which gradients are averaged."""
Measured = list[tuple[float, float, float]]
"""Of each fourth step: used share of the budget, and mean square of the gradients of new and of old blocks."""


def ratios(measured: Measured) -> tuple[float, ...]:
    """Return the root mean square of new blocks by that of old ones, from the growth to the end of each window."""
    since = [(used - measured[0][0], new, old) for used, new, old in measured]
    windows = [[each for each in since if each[0] <= end] for end in WINDOWS] if since else []
    return tuple((sum(new for _, new, _ in each) / sum(old for _, _, old in each)) ** 0.5 for each in windows)


@contextmanager
def observed(
    module: Callable[[], nn.Module], used: Callable[[], float], measured: Measured, old: str, warmup: float = 0.0
) -> Iterator[None]:
    """Measure gradients, and warm up the steps of blocks that come meanwhile.

    `used` returns the used share of the budget; names of the old blocks begin with `old`. Over the share `warmup` after
    a block came, its steps rise linearly to their full length.
    """
    came: dict[str, float] = {}
    warming: list[tuple[nn.Parameter, Tensor, float]] = []
    steps = 0

    def before(*_: Any) -> None:
        nonlocal steps
        steps += 1
        now, named = used(), {name: one for name, one in module().named_parameters() if name.startswith("blocks.")}
        came.update(dict.fromkeys(named.keys() - came.keys(), now if came else -math.inf))
        if steps % 4 == 0:
            each = {name: one.grad.flatten() for name, one in named.items() if one.grad is not None}
            parts = [[one for name, one in each.items() if name.startswith(old) == kept] for kept in (False, True)]
            if all(parts):
                new, kept = (float(torch.cat(part).square().mean()) for part in parts)
                measured.append((now, new, kept))
        for name, one in named.items() if warmup else ():
            if (share := (now - came[name]) / warmup) < 1:
                warming.append((one, one.detach().clone(), share))

    def after(*_: Any) -> None:
        with torch.no_grad():
            for one, previous, share in warming:
                one.copy_(previous.lerp(one, share))
        warming.clear()

    with register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after):
        yield
