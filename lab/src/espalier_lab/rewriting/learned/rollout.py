"""Whole episodes of a policy in several environments at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Generic

import gymnasium
import torch
from torch import Tensor

from espalier_lab.rewriting.learned.environment import Action
from espalier_lab.rewriting.learned.learnable import LearnablePolicy, S


@dataclass
class RewriteEpisode(Generic[S]):
    """The inputs, actions and rewards of one episode, by decision."""

    last: S
    """Input after the last decision; while the episode runs, the input of the next one."""
    seen: list[S] = field(default_factory=list)
    actions: list[int] = field(default_factory=list)
    logs: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)


def play(
    environments: Sequence[gymnasium.Env[Any, Action]], policy: LearnablePolicy[S], generator: torch.Generator
) -> list[RewriteEpisode[S]]:
    """Play one episode in each environment, all side by side, actions drawn by their probabilities."""
    episodes = [RewriteEpisode(policy.read(*environment.reset())) for environment in environments]
    running = list(range(len(environments)))
    while running:
        with torch.no_grad():
            scores = policy.scores([episodes[one].last for one in running])
        drawn = torch.multinomial(scores.logs.exp(), 1, generator=generator)
        logs: Tensor = scores.logs.gather(1, drawn)
        still = []
        for row, one in enumerate(running):
            episode, action = episodes[one], int(drawn[row])
            now = episode.last
            episode.seen.append(now)
            episode.actions.append(action)
            episode.logs.append(float(logs[row]))
            episode.values.append(float(scores.values[row]))
            observation, reward, terminated, truncated, info = environments[one].step(now.action(action))
            episode.rewards.append(float(reward))
            episode.last = policy.read(observation, info)
            if not (terminated or truncated):
                still.append(one)
        running = still
    return episodes
