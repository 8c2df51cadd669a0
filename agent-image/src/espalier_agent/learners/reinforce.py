"""The paper's learner: a variation of REINFORCE over outcome tables (Lamelas, algorithms 3 and 4).

`PAPER` follows the paper to the letter. `BATCHED` is the same estimator over many episodes at once, with each table's
returns standardised.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Final

import torch
from pydantic import Field
from torch import Tensor

from espalier_agent.learners.learning import (
    NOT_FINITE,
    Learner,
    LearningError,
    LearningProgress,
    ProgressCallback,
    Start,
)
from espalier_agent.policies.network import PolicyNetwork
from espalier_agent.tables.game import Game, Returns
from espalier_core.base import Record


class TableOrder(StrEnum):
    """The order in which tables are learnt."""

    CYCLE = "cycle"
    """One table per update, each in turn."""
    TOGETHER = "together"
    """All tables in every update."""
    CURRICULUM = "curriculum"
    """One after the other, each with an equal share of the episodes (Lamelas 6.5); the temperature restarts."""


class ReinforceConfig(Record):
    """Hyperparameters; the defaults are the paper's (Lamelas 5.7, 6.5)."""

    episodes: int = Field(default=10_000, ge=1)
    """Number of episodes of all tables together; rounded up to whole updates."""
    episodes_per_update: int = Field(default=1, ge=1)
    """Number of episodes of each table in an update. The paper updates after each episode."""
    order: TableOrder = TableOrder.CYCLE
    returns: Returns = Returns.PAPER
    learning_rate: float = Field(default=1e-4, gt=0)
    """Learning rate of Adam."""
    learning_rate_decay: float = Field(default=0.99, gt=0, le=1)
    """Factor on the learning rate."""
    decay_every: int = Field(default=500, ge=1)
    """Episodes between two decays, of the learning rate and of the temperature."""
    temperature: float = Field(default=1.0, ge=1)
    """Softmax action selection while learning: logits are divided by it."""
    temperature_decay: float = Field(default=0.9, gt=0, le=1)
    """Factor on the temperature, which never falls below 1."""
    time_jitter: float = Field(default=0.0, ge=0, le=0.5)
    """Maximum shift of times left, as a share of the budget: each update draws one per table, either way."""
    entropy: float = Field(default=0.0, ge=0)
    """Weight of the policy's entropy in the objective, falling linearly to 0 at the end. The paper has none."""


PAPER: Final = ReinforceConfig()
"""Algorithms 3 and 4 to the letter."""

BATCHED: Final = ReinforceConfig(
    episodes=600_000,
    episodes_per_update=50,
    order=TableOrder.TOGETHER,
    returns=Returns.STANDARDISED,
    learning_rate=1e-3,
    learning_rate_decay=1.0,
    time_jitter=0.1,
    entropy=0.6,
)
"""For several tables at once in a minute. Without the entropy term, learning at this rate ends within a few hundred
updates in the first good sequence; 0.6 was the best of 0.02, 0.1, 0.3, 0.6 on the paper's six tables."""


def train(start: Start, config: ReinforceConfig, progress: ProgressCallback) -> int:
    """Play and update, stage by stage."""
    network, games = start.network, start.games
    generator = start.generator()
    # Embeddings and time encodings are fixed; encoders and decider are the trainable components (Lamelas 5.7).
    optimizer = torch.optim.Adam(network.parameters(), lr=config.learning_rate, fused=True)
    played = 0
    for stage in [[game] for game in games] if config.order is TableOrder.CURRICULUM else [games]:
        played = _learn_stage(stage, network, optimizer, generator, config, played, progress, len(games))
    return played


def objective(log_probabilities: Tensor, returns: Tensor) -> Tensor:
    """Return algorithm 3's O = 1/k · Σ_i −P_i·R for P of shape (episodes, k) and R of shape (episodes,), as a mean.

    One undiscounted return for all actions of an episode, a mean over actions instead of a sum, no baseline.
    """
    return (-log_probabilities * returns[:, None]).mean(dim=1).mean()


def counted_objective(log_probabilities: Tensor, returns: Tensor, counts: Tensor) -> Tensor:
    """Return `objective` of episodes given as the number of episodes of each sequence."""
    each = (-log_probabilities * returns[:, None]).mean(dim=1)
    return (each * counts).sum() / counts.sum()


def _learn_stage(
    games: list[Game],
    network: PolicyNetwork,
    optimizer: torch.optim.Adam,
    generator: torch.Generator,
    config: ReinforceConfig,
    played: int,
    progress: ProgressCallback,
    tables: int,
) -> int:
    """Play one stage's share of the episodes, an update after each batch; return the episodes played so far."""
    share = math.ceil(config.episodes * len(games) / tables)
    stage_played = 0
    updates = 0
    while stage_played < share:
        taking_part = games if config.order is TableOrder.TOGETHER else [games[updates % len(games)]]
        temperature = max(1.0, config.temperature * config.temperature_decay ** (stage_played // config.decay_every))
        # The learning rate decays over the whole of learning, the temperature within each stage.
        decays = (played + stage_played) // config.decay_every
        for group in optimizer.param_groups:
            group["lr"] = config.learning_rate * config.learning_rate_decay**decays
        entropy = config.entropy * max(0.0, 1.0 - (played + stage_played) / config.episodes)
        total, mean_objective, mean_accuracy = _update_objective(
            taking_part, network, generator, config, temperature, entropy
        )
        optimizer.zero_grad()
        torch.autograd.backward(total)
        optimizer.step()
        updates += 1
        stage_played += config.episodes_per_update * len(taking_part)
        done = played + stage_played
        progress(LearningProgress(done, max(config.episodes, done), mean_objective, mean_accuracy))
    return played + stage_played


def _update_objective(
    games: list[Game],
    network: PolicyNetwork,
    generator: torch.Generator,
    config: ReinforceConfig,
    temperature: float,
    entropy: float,
) -> tuple[Tensor, float, float]:
    """Play one batch on each table; return the value to minimise, algorithm 3's part of it, and the mean accuracy."""
    objectives, entropies, accuracies = [], [], []
    for game in games:
        shift = 0.0
        if config.time_jitter > 0:
            shift = config.time_jitter * (2.0 * torch.rand((), generator=generator).item() - 1.0)
        log_probabilities = game.log_probabilities(network, temperature, shift)
        if not bool(torch.isfinite(log_probabilities).all()):
            raise LearningError(NOT_FINITE)
        episodes = config.episodes_per_update
        if episodes <= len(game.returns):
            recorded, ended = game.play(log_probabilities, episodes, generator)
            objectives.append(objective(recorded, game.returns[ended].float()))
            accuracies.append(game.accuracies[ended].mean())
        else:
            recorded, counts = game.count(log_probabilities, episodes, generator)
            objectives.append(counted_objective(recorded, game.returns.float(), counts))
            accuracies.append((game.accuracies * counts).sum() / episodes)
        entropies.append(-(log_probabilities.exp() * log_probabilities).sum(dim=1).mean())
    mean_objective = torch.stack(objectives).mean()
    total = mean_objective
    if entropy > 0:
        total = mean_objective - entropy * torch.stack(entropies).mean()
    return total, mean_objective.item(), torch.stack(accuracies).mean().item()


LEARNER: Final = Learner("reinforce", train, {"paper": PAPER, "batched": BATCHED}, encoder="lstm")
learn = LEARNER.learn
