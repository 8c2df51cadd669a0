"""What ways of learning a network share: how likely what was chosen is, a step of the optimizer, imitation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from espalier_lab.learners.core import entropy
from espalier_lab.scheduling.learners.rollout import columns_of

LONGEST: Final = 0.5
"""Gradients of a network that learns from its own decisions are clipped to this norm."""


def likelihood(scores: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
    """Return the logarithm of the probability of each action, (n), and the mean entropy, by scores (n, columns)."""
    every = torch.log_softmax(scores, 1)
    logs = every.gather(1, columns_of(actions, scores)[:, None])[:, 0]
    return logs, entropy(every).mean()


def descend(optimizer: torch.optim.Optimizer, loss: Tensor, clipped: nn.Module | None = None) -> None:
    """Take a step that makes `loss` smaller; the gradients of `clipped` are clipped to `LONGEST`."""
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    if clipped is not None:
        torch.nn.utils.clip_grad_norm_(clipped.parameters(), LONGEST)
    optimizer.step()


def imitate(
    network: nn.Module,
    judged: Callable[[NDArray[np.int64]], tuple[Tensor, Tensor]],
    *,
    parts: int,
    chunks: int,
    epochs: int,
    rate: float,
    rng: np.random.Generator,
) -> float:
    """Fit a network to decisions that are known in `parts`, which each epoch shuffles and takes in `chunks` steps.

    `judged` returns for some of the parts, by index, the loss, and how many of their decisions the network takes too;
    returned is the sum of these in the last epoch. `rate` is Adam's.
    """
    optimizer = torch.optim.Adam(network.parameters(), lr=rate)
    right = 0.0
    for _ in range(epochs):
        right = 0.0
        for chunk in np.array_split(rng.permutation(parts), max(1, chunks)):
            loss, agreed = judged(chunk)
            descend(optimizer, loss)
            right += float(agreed)
    return right
