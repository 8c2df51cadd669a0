"""The exact learner `expected` for many runs at once, in a fraction of the time.

A table is small, so an update of one run is mostly overhead: its tensors hold a few thousand numbers. Runs that read
the same models at the same times differ in their weights and in the values of sequences. Both are stacked, and each
operation is done for all runs at once (`torch.vmap`). Runs are independent: no gradient or moment of one enters
another, and random numbers come from a generator of each run's own seed.

Rounding differs from that of a run alone: gradients agree to float tolerance, not bit for bit. Where a unit is about to
fall silent or a gradient is almost 0, the last digit decides which way Adam goes, so that after hundreds of updates
some runs differ from the same run alone, with an equally good policy (tests show both). `espalier agent learn`
continues one seed at a time; this is for studies over seeds. The encoder must be `stackable`.

Ten seeds on one core take a third of the processor time of single runs (2.8 times as fast on the paper's six tables,
3.2 on three of one model).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from espalier_agent.learners.expected import FIT, LEARNER, ExpectedConfig, objective, optimizer_of, schedule
from espalier_agent.learners.learning import (
    LearningError,
    Lesson,
    Start,
    ascend,
    finish_learning,
    one_thread,
    start_learning,
    time_shifts,
)
from espalier_agent.policies.network import PolicyNetwork
from espalier_agent.policies.policy import Policy
from espalier_agent.tables.game import Games, returns_of
from espalier_core.types.outcomes import OutcomeTable, SequenceOutcome


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
    lesson = Lesson(runs[0].tables, config, encoder, runs[0].seed, name)
    start = start_learning(lesson)
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
        _finished(run, start, {key: value[place] for key, value in weights.items()}, lesson)
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


def _finished(run: SeededRun, start: Start, weights: Mapping[str, Tensor], lesson: Lesson) -> Policy:
    network = PolicyNetwork.with_weights(start.network.config, weights)
    own = Start(run.tables, run.seed, network, start.vocabulary, start.games)
    episodes = lesson.config.updates * sum(len(game.returns) for game in start.games)
    return finish_learning(own, LEARNER.name, lesson, episodes)
