"""Shared parts of learners: likelihood of choices, a step of the optimizer, imitation."""

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
"""Maximum norm of the gradients of a network that learns from its own decisions."""


def likelihood(scores: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
    """Return the log probability of each action, (n), and the mean entropy, from scores (n, columns)."""
    every = torch.log_softmax(scores, 1)
    logs = every.gather(1, columns_of(actions, scores)[:, None])[:, 0]
    return logs, entropy(every).mean()


def descend(optimizer: torch.optim.Optimizer, loss: Tensor, clipped: nn.Module | None = None) -> None:
    """Take a step towards a smaller `loss`; the gradients of `clipped` are clipped to `LONGEST`."""
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
    """Fit a network to known decisions in `parts`, which each epoch shuffles and takes in `chunks` steps.

    `judged` returns the loss for some parts, by index, and the number of their decisions that the network agrees with;
    the sum of these in the last epoch is returned. `rate` is Adam's.
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
