"""Masked PPO (Schulman et al., arXiv 1707.06347)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from espalier_scheduling.learners.descent import descend, likelihood
from espalier_scheduling.learners.rollout import Estimates, Rollout, collect, estimated, joined, padded

if TYPE_CHECKING:
    from espalier_scheduling.learners.learner import Learner, Settings
    from espalier_scheduling.learners.registry import Told


def improve(learner: Learner, told: Told) -> None:
    """Learn from the network's own decisions."""
    settings, network = learner.settings, learner.network
    optimizer = torch.optim.Adam(network.parameters(), lr=settings.rate, eps=1e-5)
    size = settings.episodes * settings.steps
    turns = max(1, settings.decisions // size)
    for turn in range(turns):
        for group in optimizer.param_groups:
            group["lr"] = settings.rate * (1 - 0.9 * turn / turns)
        rollout = collect(learner.episodes, network, settings.steps, learner.generator, discount=settings.discount)
        found = estimated(rollout, trace=settings.trace, others=settings.others)
        learner.learnt_from += size
        figures = {"lost": rollout.lost}
        for _ in range(settings.epochs):
            order = learner.rng.permutation(settings.steps)
            for chunk in np.array_split(order, max(1, size // settings.minibatch)):
                figures |= _update(settings, network, optimizer, rollout, found, chunk)
        told(turn, figures)


def _update(
    settings: Settings,
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    rollout: Rollout,
    found: Estimates,
    chunk: NDArray[np.int64],
) -> dict[str, float]:
    batch = joined([rollout.seen[index] for index in chunk])
    scores, values = network(*batch)
    logs, entropy = likelihood(scores, rollout.actions[chunk].flatten())
    ratio = (logs - rollout.logs[chunk].flatten()).exp()
    advantage = found.advantages[chunk].flatten()
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-6)
    gain = torch.min(ratio * advantage, ratio.clamp(1 - settings.clip, 1 + settings.clip) * advantage).mean()
    target = padded([found.returns[index] for index in chunk])
    error = (((values - target) ** 2) * batch[3]).sum() / batch[3].sum()
    loss = -gain - settings.entropy * entropy + settings.value * error
    descend(optimizer, loss, network)
    return {
        "entropy": float(entropy.detach()),
        "error": float(error.detach()),
        "moved": float((ratio - 1).abs().mean().detach()),
    }
