"""Episodes of a random policy in the real environment, the only data for a world model."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Final

import torch

from espalier_lab.rewriting.learned.environment import RewritesEnvironment
from espalier_lab.rewriting.learned.learnable import LearnablePolicy, Scores
from espalier_lab.rewriting.learned.rollout import RewriteEpisode, play
from espalier_lab.rewriting.learned.seen import GraphObservation

STOPPING: Final = 0.05
"""Probability that a random walk stops before a rewrite, so that a world model sees the effect of stopping."""


class Uniform(LearnablePolicy[GraphObservation]):
    """Draws any applicable rewrite with the same probability, and stops if there is none."""

    def __init__(self, stopping: float = STOPPING) -> None:
        """Stop with a probability before each rewrite."""
        super().__init__()
        self.stopping = stopping

    def read(self, observation: Any, info: dict[str, Any]) -> GraphObservation:
        """Return a graph without its padding."""
        return GraphObservation.of(observation, info)

    def scores(self, seen: Sequence[GraphObservation]) -> Scores:
        """Score the actions of graphs; expected returns are 0."""
        matches = [len(one.rules) for one in seen]
        chances = torch.zeros(len(seen), 1 + max(matches))
        for row, count in enumerate(matches):
            chances[row, 0] = self.stopping if count else 1.0
            chances[row, 1 : 1 + count] = (1 - self.stopping) / max(1, count)
        return Scores(chances.log(), torch.zeros(len(seen)))


def record(
    environment: RewritesEnvironment, steps: int, seed: int, policy: LearnablePolicy[GraphObservation] | None = None
) -> list[RewriteEpisode[GraphObservation]]:
    """Record whole episodes until they have at least `steps` steps; `Uniform` plays them, or another policy."""
    policy, generator = policy or Uniform(), torch.Generator().manual_seed(seed)
    episodes: list[RewriteEpisode[GraphObservation]] = []
    while (missing := steps - sum(len(one.actions) for one in episodes)) > 0:
        # Play no more episodes side by side than can be missing.
        count = min(8, -(-missing // environment.horizon))
        episodes += play([copy.copy(environment) for _ in range(count)], policy, generator)
    return episodes
