"""A learner: random changes of all weights, kept where the expected accuracy rises."""

from __future__ import annotations

from typing import Final

import torch
from pydantic import Field
from torch import nn

from espalier_agent.learners.learning import Learner, LearningProgress, ProgressCallback, Start
from espalier_agent.tables.game import Games, Returns
from espalier_core.base import Record


class RandomSearchConfig(Record):
    """What changes learning."""

    trials: int = Field(default=100, ge=1)
    scale: float = Field(default=0.05, gt=0)
    """Standard deviation of a change."""
    returns: Returns = Returns.STANDARDISED


@torch.no_grad()
def train(start: Start, config: RandomSearchConfig, progress: ProgressCallback) -> int:
    """Change the network of the start in place; return how many episodes were learnt from."""
    network, chance = start.network, start.generator()
    games = Games(start.games, network, start.vocabulary)

    def accuracy() -> float:
        probabilities = games.of_sequences(games.log_probabilities(network)).exp()
        return games.mean_by_game(probabilities, games.accuracies).mean().item()

    best = accuracy()
    for trial in range(1, config.trials + 1):
        before = nn.utils.parameters_to_vector(network.parameters())
        change = config.scale * torch.randn(len(before), generator=chance)
        nn.utils.vector_to_parameters(before + change, network.parameters())
        found = accuracy()
        if found > best:
            best = found
        else:
            nn.utils.vector_to_parameters(before, network.parameters())
        progress(LearningProgress(trial, config.trials, -best, best))
    return config.trials * len(games.returns)


LEARNER: Final = Learner("random-search", train, {"default": RandomSearchConfig()})
