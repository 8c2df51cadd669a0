"""The core of masked PPO, the same for all studies (Schulman et al. 2017, arXiv 1707.06347; GAE: arXiv 1506.02438).

An action that is not allowed has the log probability -inf, or a score so low that its probability is 0. Studies differ
in the rollout, the critic, and the normalisation of advantages.
"""

from __future__ import annotations

import torch
from torch import Tensor


def advantages(rewards: Tensor, values: Tensor, gae: float) -> Tensor:
    """Return generalised advantage estimates without discount, (episodes, decisions).

    A_t = δ_t + λ·A_{t+1} with δ_t = r_t + V_{t+1} - V_t; after the last decision V and A are 0, as nothing can be
    earned after the end of a budget.
    """
    estimates = torch.zeros_like(rewards)
    value_after = advantage_after = torch.zeros(len(rewards))
    for step in reversed(range(rewards.shape[1])):
        surprise = rewards[:, step] + value_after - values[:, step]
        advantage_after = surprise + gae * advantage_after
        value_after = values[:, step]
        estimates[:, step] = advantage_after
    return estimates


def clipped_loss(now: Tensor, before: Tensor, gained: Tensor, clip: float) -> Tensor:
    """Return PPO's clipped objective, to minimise, from log probabilities now and when played, and advantages."""
    ratio = (now - before).exp()
    return -torch.minimum(ratio * gained, ratio.clamp(1 - clip, 1 + clip) * gained).mean()


def entropy(log_probabilities: Tensor) -> Tensor:
    """Return the entropy of each row; actions that are not allowed add nothing."""
    legal = torch.isfinite(log_probabilities)
    safe = log_probabilities.masked_fill(~legal, 0.0)
    return -(safe.exp() * safe * legal).sum(dim=1)
