"""The exact learner: the gradient of the expected return over all sequences of all tables at once.

A table is small enough to enumerate, so nothing is sampled: a sequence's probability is the product of those of its
actions, and the expectation a sum. A decreasing entropy bonus keeps the policy from settling on the first good
sequence: while it is large the policy is nearly uniform, and as it falls the policy concentrates on the best sequences.

`learn_many` does the same for many runs at once, in a fraction of the time. A table is small, so an update of one run
is mostly overhead: its tensors hold a few thousand numbers. Runs that read the same models at the same times differ in
their weights and in the values of sequences. Both are stacked, and each operation is done for all runs at once
(`torch.vmap`). Runs are independent: no gradient or moment of one enters another, and random numbers come from a
generator of each run's own seed.

Rounding differs from that of a run alone: gradients agree to float tolerance, not bit for bit. Where a unit is about to
fall silent or a gradient is almost 0, the last digit decides which way Adam goes, so that after hundreds of updates
some runs differ from the same run alone, with an equally good policy (tests show both). `espalier agent learn`
continues one seed at a time; this is for studies over seeds. The encoder must be `stackable`.

Ten seeds on one core take a third of the processor time of single runs (2.8 times as fast on the paper's six tables,
3.2 on three of one model).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.func import functional_call, vmap

from espalier_agent.history.episodes import Gathered
from espalier_agent.learners.learning import (
    Learner,
    LearningError,
    LearningProgress,
    ProgressCallback,
    Start,
    ascend,
    finish_learning,
    one_thread,
    start_learning,
    time_shifts,
)
from espalier_agent.policies.network import PolicyNetwork
from espalier_agent.policies.policy import Policy
from espalier_agent.tables.game import Games, Returns, returns_of
from espalier_core.base import Record
from espalier_core.types.outcomes import OutcomeTable, SequenceOutcome


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


@dataclass(frozen=True, slots=True)
class SeededRun:
    """The tables that one run learns, and its seed."""

    tables: tuple[OutcomeTable, ...]
    seed: int


def learn_many(
    runs: Sequence[SeededRun],
    *,
    config: ExpectedConfig = FIT,
    encoder: str = LEARNER.encoder,
    name: str = LEARNER.name,
) -> tuple[Policy, ...]:
    """Learn a policy for each run, from a fresh network; the same runs and configuration give the same policies.

    The tables of all runs must be alike but for accuracies. Raise `TableError` for a table that cannot be played, and
    `LearningError`.
    """
    if not runs:
        raise LearningError("there is no run to learn; give at least one seed")
    for run in runs:
        _check_alike(run, runs[0])
    start = start_learning(runs[0].tables, encoder=encoder, seed=runs[0].seed, parent=None, returns=config.returns)
    games = Games(start.games, start.network, start.vocabulary)
    returns = torch.stack([_returns(run, config) for run in runs])
    networks = [dict(PolicyNetwork.seeded(start.network.config, run.seed).named_parameters()) for run in runs]
    weights = {
        key: torch.stack([network[key].detach() for network in networks]).requires_grad_() for key in networks[0]
    }
    generators = [torch.Generator().manual_seed(run.seed) for run in runs]
    optimizer = optimizer_of(weights.values(), config)
    wanted_of = vmap(Wanted(start.network, games, config).of, in_dims=(0, 0, 0, None))
    with one_thread():
        for update in range(config.updates):
            entropy = schedule(optimizer, config, update)
            shifts = torch.stack([time_shifts(config.time_jitter, len(games.games), each) for each in generators])
            ascend(optimizer, wanted_of(weights, returns, shifts, entropy))
    return tuple(
        _finished(run, start, {key: value[place] for key, value in weights.items()}, config, name)
        for place, run in enumerate(runs)
    )


class Wanted(nn.Module):
    """The objective of `expected` as a function of a network's weights."""

    def __init__(self, network: PolicyNetwork, games: Games, config: ExpectedConfig) -> None:
        super().__init__()
        self.network = network
        self._games = games
        self._imitation = config.imitation

    def of(self, weights: dict[str, Tensor], returns: Tensor, shifts: Tensor, entropy: float) -> Tensor:
        """Return it for one run's weights and the returns of its sequences."""
        own = {f"network.{name}": value for name, value in weights.items()}
        wanted: Tensor = functional_call(self, own, (returns, shifts, entropy))
        return wanted

    def forward(self, returns: Tensor, shifts: Tensor, entropy: float) -> Tensor:
        """Return it for the weights that the network has."""
        games = copy.copy(self._games)
        games.returns = returns
        log_probabilities = games.log_probabilities(self.network, shifts=shifts)
        return objective(games, log_probabilities, entropy, self._imitation)[0]


def _returns(run: SeededRun, config: ExpectedConfig) -> Tensor:
    """Return the returns of the sequences of a run's tables, in the order of `Games`."""
    return torch.cat(
        [returns_of([outcome.accuracy for outcome in _in_order(table)], config.returns) for table in run.tables]
    )


def _in_order(table: OutcomeTable) -> list[SequenceOutcome]:
    return sorted(table.sequences, key=lambda outcome: outcome.actions)


def _check_alike(run: SeededRun, first: SeededRun) -> None:
    if [_seen(table) for table in run.tables] != [_seen(table) for table in first.tables]:
        raise LearningError(
            f"the run of seed {run.seed} learns other models or times than that of seed {first.seed}; "
            "learn at once only runs whose tables differ in accuracies alone"
        )


def _seen(table: OutcomeTable) -> tuple[object, ...]:
    """Return all parts of a table that determine the states of its episodes."""
    times = [(outcome.actions, outcome.time_left_s) for outcome in _in_order(table)]
    return table.model, table.architecture, table.actions, table.time_budget_s, times


def _finished(run: SeededRun, start: Start, weights: Mapping[str, Tensor], config: ExpectedConfig, name: str) -> Policy:
    return finish_learning(
        Start(
            run.tables,
            run.seed,
            PolicyNetwork.with_weights(start.network.config, weights),
            start.vocabulary,
            start.games,
        ),
        learner=LEARNER.name,
        config=config,
        name=name,
        parent=None,
        episodes=config.updates * sum(len(game.returns) for game in start.games),
    )
