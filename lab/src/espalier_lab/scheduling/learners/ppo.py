"""Masked PPO (Schulman et al., arXiv 1707.06347), also of networks that remember an episode (RL²: `recurrent`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from espalier_lab.learners.core import clipped_loss
from espalier_lab.scheduling.learners.descent import descend, likelihood
from espalier_lab.scheduling.learners.recurrent import Recurrent, check_whole, remembering
from espalier_lab.scheduling.learners.rollout import Estimates, Rollout, Seen, collect, estimated, joined, padded

if TYPE_CHECKING:
    from espalier_lab.scheduling.learners.learner import LearnerSettings, OnUpdate, SchedulingLearner

Rows: TypeAlias = NDArray[np.int64] | slice
"""Some of the episodes."""


def improve(learner: SchedulingLearner, on_update: OnUpdate) -> None:
    """Learn from the network's own decisions.

    Raise ValueError if a network remembers and `settings.steps` is not the number of decisions of an episode.
    """
    settings, network = learner.settings, learner.network
    optimizer = torch.optim.Adam(network.parameters(), lr=settings.rate, eps=1e-5)
    size = settings.episodes * settings.steps
    turns = max(1, settings.decisions // size)
    for turn in range(turns):
        for group in optimizer.param_groups:
            group["lr"] = settings.rate * (1 - 0.9 * turn / turns)
        with remembering(network, settings.episodes):
            rollout = collect(learner.episodes, network, settings.steps, learner.generator, discount=settings.discount)
        if isinstance(network, Recurrent):
            check_whole(rollout)
        found = estimated(rollout, trace=settings.trace, others=settings.others)
        learner.learnt_from += size
        figures = {"lost": rollout.lost}
        for _ in range(settings.epochs):
            for steps, rows in _parts(network, settings, learner.rng):
                figures |= _update(settings, network, optimizer, rollout, found, steps, rows)
        on_update(turn, figures)


def _parts(
    network: nn.Module, settings: LearnerSettings, rng: np.random.Generator
) -> Iterator[tuple[NDArray[np.int64], Rows]]:
    """Return (steps, episodes) of each minibatch: all episodes of some steps; the reverse if a network remembers.

    A memory at a step depends on all steps before it.
    """
    chunks = max(1, settings.episodes * settings.steps // settings.minibatch)
    if isinstance(network, Recurrent):
        for rows in np.array_split(rng.permutation(settings.episodes), min(chunks, settings.episodes)):
            yield np.arange(settings.steps), rows
    else:
        for steps in np.array_split(rng.permutation(settings.steps), chunks):
            yield steps, slice(None)


def _update(
    settings: LearnerSettings,
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    rollout: Rollout,
    found: Estimates,
    steps: NDArray[np.int64],
    rows: Rows,
) -> dict[str, float]:
    seen = [_of(rollout.seen[step], rows) for step in steps]
    batch = joined(seen)
    scores, values = network.unrolled(seen) if isinstance(network, Recurrent) else network(*batch)
    now, entropy = likelihood(scores, rollout.actions[steps][:, rows].flatten())
    before = rollout.logs[steps][:, rows].flatten()
    advantage = found.advantages[steps][:, rows].flatten()
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-6)
    target = padded([found.returns[step][rows] for step in steps])
    error = (((values - target) ** 2) * batch[3]).sum() / batch[3].sum()
    loss = clipped_loss(now, before, advantage, settings.clip) - settings.entropy * entropy + settings.value * error
    descend(optimizer, loss, network)
    return {
        "entropy": float(entropy.detach()),
        "error": float(error.detach()),
        "moved": float(((now - before).exp() - 1).abs().mean().detach()),
    }


def _of(seen: Seen, rows: Rows) -> Seen:
    jobs, options, cluster, present, mask = seen
    return jobs[rows], options[rows], cluster[rows], present[rows], mask[rows]
