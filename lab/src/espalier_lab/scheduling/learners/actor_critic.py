"""Actor-critic with replay, as DL2 learns (Peng et al., arXiv 1909.06040, 4.3 and 6.1).

Decisions and their results go into a memory of 8,192; minibatches of 256 are drawn from it. The critic learns by one
step of temporal differences, which is the actor's advantage too; nothing corrects for decisions of an older network.
Sizes, rate and the weight of entropy come from the source's released settings. Differences: network, masks, rewards by
job and the discount are common to all learners here; every decision is equally likely to be drawn, while the release
prefers high rewards and injects more of them; and its exploration, which overrules decisions that leave workers and
servers out of balance, is left out.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import torch
from torch import Tensor, nn

from espalier_lab.scheduling.learners.descent import descend, likelihood
from espalier_lab.scheduling.learners.rollout import STOP, Rollout, Seen, collect, joined, padded

if TYPE_CHECKING:
    from espalier_lab.scheduling.learners.learner import OnUpdate, SchedulingLearner

MEMORY: Final = 8192
"""Maximum number of decisions in the memory."""
MINIBATCH: Final = 256
RATE: Final = 1e-4
ENTROPY: Final = 0.1


@dataclass(frozen=True, slots=True, eq=False)
class ActorCriticStep:
    """One step of all episodes."""

    seen: Seen
    actions: Tensor
    """(episodes): columns, or `STOP`."""
    own: Tensor
    """(episodes, width): 1 for the job that got something; all 1 for "stop"."""
    rewards: Tensor
    """(episodes, width)."""
    lives: Tensor
    """(episodes, width): weight of the value of the next observation."""
    following: Seen
    places: Tensor
    """(episodes, width): the row of each job in the next observation; any, if it has no weight."""


def improve(learner: SchedulingLearner, on_update: OnUpdate) -> None:
    """Learn from the network's own decisions, each drawn about as often as in `ppo`."""
    settings, network = learner.settings, learner.network
    optimizer = torch.optim.Adam(network.parameters(), lr=RATE)
    size = settings.episodes * settings.steps
    memory = deque[ActorCriticStep](maxlen=max(1, MEMORY // settings.episodes))
    for turn in range(max(1, settings.decisions // size)):
        rollout = collect(learner.episodes, network, settings.steps, learner.generator, discount=settings.discount)
        learner.learnt_from += size
        memory.extend(_remembered(rollout, step) for step in range(settings.steps))
        figures = {"lost": rollout.lost}
        for _ in range(max(1, settings.epochs * size // MINIBATCH)):
            picked = learner.rng.integers(len(memory), size=max(1, MINIBATCH // settings.episodes))
            drawn = [memory[index] for index in picked]
            figures |= _update(network, optimizer, drawn, settings.others, settings.value)
        on_update(turn, figures)


def _remembered(rollout: Rollout, step: int) -> ActorCriticStep:
    window, ahead = rollout.windows[step], rollout.windows[step + 1]
    count, jobs = rollout.about.shape[1], rollout.rewards.shape[2]
    rows = np.arange(count)[:, None]
    # From last to first, so that the first row of a job counts: padding names jobs again.
    places = np.zeros((count, jobs), np.int64)
    for column in reversed(range(ahead.shape[1])):
        places[rows[:, 0], ahead[:, column]] = column
    about = rollout.about[step][:, None]
    own = (about == STOP) | (window == about)
    return ActorCriticStep(
        seen=rollout.seen[step],
        actions=rollout.actions[step],
        own=torch.from_numpy(own.astype(np.float32)),
        rewards=torch.from_numpy(rollout.rewards[step][rows, window].astype(np.float32)),
        lives=torch.from_numpy(rollout.lives[step][rows, window].astype(np.float32)),
        following=rollout.seen[step + 1],
        places=torch.from_numpy(places[rows, window]),
    )


def _update(
    network: nn.Module, optimizer: torch.optim.Optimizer, drawn: list[ActorCriticStep], others: float, weight: float
) -> dict[str, float]:
    batch = joined([each.seen for each in drawn])
    scores, values = network(*batch)
    with torch.no_grad():
        _, later = network(*joined([each.following for each in drawn]))
    ahead = later.gather(1, padded([each.places for each in drawn]))
    target = padded([each.rewards for each in drawn]) + padded([each.lives for each in drawn]) * ahead
    errors = (target - values) * batch[3]
    own = padded([each.own for each in drawn])
    advantage = (errors.detach() * (own + others * (1 - own))).sum(1)
    logs, entropy = likelihood(scores, torch.cat([each.actions for each in drawn]))
    error = (errors**2).sum() / batch[3].sum()
    loss = -(logs * advantage).mean() - ENTROPY * entropy + weight * error
    descend(optimizer, loss, network)
    return {"entropy": float(entropy.detach()), "error": float(error.detach())}
