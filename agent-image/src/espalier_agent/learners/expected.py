"""The exact learner: the gradient of the expected return over all sequences of all tables at once.

A table is small enough to enumerate, so nothing is sampled: a sequence's probability is the product of those of its
actions, and the expectation a sum. A decreasing entropy bonus keeps the policy from settling on the first good
sequence: while it is large the policy is nearly uniform, and as it falls the policy concentrates on the best sequences.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

import torch
from pydantic import Field
from torch import Tensor

from espalier_agent.history.episodes import Gathered
from espalier_agent.learners.learning import (
    Learner,
    LearningProgress,
    ProgressCallback,
    Start,
    ascend,
    time_shifts,
)
from espalier_agent.tables.game import Games, Returns
from espalier_core.base import Record


class ExpectedConfig(Record):
    """Hyperparameters of the exact learner."""

    updates: int = Field(default=600, ge=1)
    """Number of updates; each plays every sequence of every table, by its probability."""
    returns: Returns = Returns.STANDARDISED
    learning_rate: float = Field(default=3e-3, gt=0)
    """Initial learning rate of Adam; it falls to a tenth by a half cosine."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Weight decay of AdamW, decoupled from the gradient: draws weights to 0."""
    entropy_first: float = Field(default=1.0, gt=0)
    """Initial weight of a sequence's entropy relative to its standardized return."""
    entropy_last: float = Field(default=0.01, gt=0)
    """Final weight; it falls geometrically. This is the regularisation: small fits the tables, large smooths them."""
    imitation: float = Field(default=1.0, ge=0)
    """Weight of the cross-entropy of the policy to the known distribution that maximises expected return and entropy
    together. It has the same optimum, but its gradient does not vanish where a policy has settled."""
    time_jitter: float = Field(default=0.0, ge=0, le=0.5)
    """Maximum shift of times left, as a share of the budget: each update draws one per table, either way."""


FIT: Final = ExpectedConfig()
"""Ends nearly greedy, with the best sequence of each learnt table."""

SMOOTH: Final = ExpectedConfig(entropy_last=0.5)
"""Stops while good sequences share the probability, so that their common features decide, and less so the noise that
put one of a table first. Worse on the learnt tables; `make bench-agent` measures it on others."""


def objective(
    games: Games, log_probabilities: Tensor, entropy: float, imitation: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the value to maximise (a mean over tables), and each table's expected return and accuracy."""
    sequences = games.of_sequences(log_probabilities)
    probabilities = sequences.exp()
    returns = games.mean_by_game(probabilities, games.returns)
    entropies = -games.mean_by_game(probabilities, sequences)
    accuracies = games.mean_by_game(probabilities.detach(), games.accuracies)
    wanted = returns + entropy * entropies
    if imitation > 0:
        wanted = wanted + imitation * games.mean_by_game(games.soft_best(entropy), sequences)
    return wanted.mean(), returns, accuracies


def optimizer_of(weights: Iterable[Tensor], config: ExpectedConfig) -> torch.optim.Optimizer:
    """Return the optimizer of these weights."""
    return torch.optim.AdamW(weights, lr=config.learning_rate, weight_decay=config.weight_decay, fused=True)


def slow_down(optimizer: torch.optim.Optimizer, learning_rate: float, done: float) -> None:
    """Set the learning rate after a share `done` of the updates: a half cosine, down to a tenth."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * done)))


def schedule(optimizer: torch.optim.Optimizer, config: ExpectedConfig, update: int) -> float:
    """Set the learning rate of an update, and return the weight of the entropy in it."""
    done = update / config.updates
    slow_down(optimizer, config.learning_rate, done)
    return config.entropy_first * math.pow(config.entropy_last / config.entropy_first, done)


def train(start: Start, config: ExpectedConfig, progress: ProgressCallback) -> int:
    """Train on all sequences of all tables in each update."""
    network = start.network
    games = Games(start.games, network, start.vocabulary)
    generator = start.generator()
    optimizer = optimizer_of(network.parameters(), config)
    episodes = 0
    for update in range(config.updates):
        entropy = schedule(optimizer, config, update)
        shifts = time_shifts(config.time_jitter, len(games.games), generator)
        log_probabilities = games.log_probabilities(network, shifts=shifts)
        wanted, returns, accuracies = objective(games, log_probabilities, entropy, config.imitation)
        ascend(optimizer, wanted)
        episodes += len(games.returns)
        total = config.updates * len(games.returns)
        progress(LearningProgress(episodes, total, -returns.mean().item(), accuracies.mean().item()))
    return episodes


def _with_history(history: Gathered, files: Sequence[str]) -> Learner:
    # Imported here because it is built on this module.
    from espalier_agent.learners.from_history import HistoryLearner

    return HistoryLearner("history", train, RECIPES, history=history, files=tuple(files))


RECIPES: Final = {"fit": FIT, "smooth": SMOOTH}
LEARNER: Final = Learner("expected", train, RECIPES, with_history=_with_history)
learn = LEARNER.learn
