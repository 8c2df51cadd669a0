"""Whole episodes of a policy in several environments at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from espalier_rewriting.environment import RewritesEnvironment
from espalier_rewriting.learning.policy import RewritePolicy
from espalier_rewriting.learning.seen import Batch, Seen


@dataclass
class Episode:
    """What one episode saw, did and earned, by its decisions."""

    seen: list[Seen] = field(default_factory=list)
    actions: list[int] = field(default_factory=list)
    logs: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)


def play(
    environments: Sequence[RewritesEnvironment], policy: RewritePolicy, generator: torch.Generator
) -> list[Episode]:
    """Play one episode in each environment, all side by side, actions drawn by their probabilities."""
    episodes = [Episode() for _ in environments]
    now = [Seen.of(*environment.reset()) for environment in environments]
    running = list(range(len(environments)))
    while running:
        with torch.no_grad():
            scores = policy(Batch.of([now[one] for one in running]))
        drawn = torch.multinomial(scores.logs.exp(), 1, generator=generator)
        logs: Tensor = scores.logs.gather(1, drawn)
        still = []
        for row, one in enumerate(running):
            episode, action = episodes[one], int(drawn[row])
            episode.seen.append(now[one])
            episode.actions.append(action)
            episode.logs.append(float(logs[row]))
            episode.values.append(float(scores.values[row]))
            observation, reward, terminated, truncated, info = environments[one].step(now[one].action(action))
            episode.rewards.append(reward)
            if not (terminated or truncated):
                now[one] = Seen.of(observation, info)
                still.append(one)
        running = still
    return episodes
