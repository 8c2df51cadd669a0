"""The paper's learner for many runs at once: algorithms 3 and 4 of Lamelas to the letter, one update an episode.

Each run has its table, its seed, its starting weights and its temperature, and learns as if it were alone: what is
drawn comes from a generator of its own, and no gradient or moment of one run touches another (a test compares).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from espalier_agent.policies.encoders import encode_time
from espalier_agent.policies.network import NetworkConfig, PolicyNetwork
from espalier_agent.policies.policy import DEFAULT_EMBEDDING_SEED
from espalier_agent.policies.vocabulary import Vocabulary
from espalier_agent.study.many_networks import Models, decide, encode, stacked, unstacked
from espalier_agent.tables.game import Game, Returns
from espalier_agent.tables.tree import DecisionTree

LEARNING_RATE: Final = 1e-4
"""Of Adam; Lamelas 6.5."""
LEARNING_RATE_DECAY: Final = 0.99
TEMPERATURE_DECAY: Final = 0.9
DECAY_EVERY: Final = 500
"""Episodes, of both; Lamelas 6.5."""

Floats = npt.NDArray[np.float64]
Progress = Callable[[int], None]
"""Called with the number of episodes of each run so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One agent that learns on one table."""

    tree: DecisionTree
    seed: int
    start: Mapping[str, Tensor] | None = None
    """Weights of the agent it goes on from (transfer); none: a fresh network of its seed."""
    temperature: float = 1.0
    """Initial softmax temperature; 1: no softmax action selection."""


@dataclass(frozen=True, slots=True)
class Learnt:
    """What came of a run."""

    weights: Mapping[str, Tensor]
    objectives: Floats
    """Algorithm 3's O of each episode."""
    accuracies: Floats
    """Final accuracy of each episode."""


def learn_many(runs: Sequence[Run], episodes: int, progress: Progress | None = None) -> list[Learnt]:
    """Let all runs learn, an update after each episode; the tables need the same numbers of actions and decisions."""
    boards = _Boards(runs)
    weights = stacked([_starting_weights(run) for run in runs])
    parameters = list(weights.values())
    optimizer = torch.optim.Adam(parameters, lr=LEARNING_RATE, fused=True)
    decisions = runs[0].tree.decisions
    drawn = torch.stack(
        [torch.rand(episodes, decisions, generator=torch.Generator().manual_seed(run.seed)) for run in runs], dim=2
    )
    first_temperatures = torch.tensor([run.temperature for run in runs])
    objectives, accuracies = torch.empty(episodes, len(runs)), torch.empty(episodes, len(runs), dtype=torch.float64)
    for episode in range(episodes):
        decays = episode // DECAY_EVERY
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * LEARNING_RATE_DECAY**decays
        temperatures = (first_temperatures * TEMPERATURE_DECAY**decays).clamp_min(1.0)
        log_probabilities = boards.log_probabilities(weights, temperatures)
        recorded, ended = boards.play(log_probabilities, drawn[episode])
        objective = (-recorded * boards.returns.gather(1, ended[:, None])).mean(dim=1)
        optimizer.zero_grad()
        torch.autograd.backward(objective.sum())
        optimizer.step()
        objectives[episode] = objective.detach()
        accuracies[episode] = boards.accuracies.gather(1, ended[:, None]).squeeze(1)
        if progress is not None:
            progress(episode + 1)
    return [
        Learnt(unstacked(weights, run), objectives[:, run].double().numpy(), accuracies[:, run].numpy())
        for run in range(len(runs))
    ]


def greedy(weights: Sequence[Mapping[str, Tensor]], trees: Sequence[DecisionTree]) -> list[tuple[int, ...]]:
    """Return for each agent the actions that it takes on its tree, each the most probable one."""
    boards = _Boards([Run(tree=tree, seed=0) for tree in trees])
    with torch.no_grad():
        best = boards.log_probabilities(stacked(weights), torch.ones(len(trees))).argmax(dim=2)
    found = []
    for run, tree in enumerate(trees):
        at, actions = 0, []
        for _ in range(tree.decisions):
            actions.append(int(best[run, at]))
            at = tree.following[at][actions[-1]]
        found.append(tuple(actions))
    return found


class _Boards:
    """The trees of all runs as tensors."""

    def __init__(self, runs: Sequence[Run]) -> None:
        vocabulary = Vocabulary.build((), DEFAULT_EMBEDDING_SEED)
        games = [Game(run.tree, vocabulary, _config(run.tree), Returns.PAPER) for run in runs]
        self._models = Models([[vocabulary.embed(each) for each in game.architectures] for game in games])
        self._encoding_of = torch.stack([game.models for game in games])
        self._times = torch.stack([encode_time(game.time_left_s, game.time_budget_s) for game in games])
        self._following = torch.stack([game.following for game in games])
        self.accuracies = torch.stack([game.accuracies for game in games])
        self.returns = torch.stack([game.returns for game in games]).float()

    def log_probabilities(self, weights: dict[str, Tensor], temperatures: Tensor) -> Tensor:
        """Return those of all actions in all states, (runs, states, actions)."""
        encodings = encode(weights, self._models)
        place = self._encoding_of[:, :, None].expand(-1, -1, encodings.shape[2])
        logits = decide(weights, encodings.gather(1, place), self._times)
        return torch.log_softmax(logits / temperatures[:, None, None], dim=2)

    def play(self, log_probabilities: Tensor, drawn: Tensor) -> tuple[Tensor, Tensor]:
        """Play one episode of each run by numbers from [0, 1), (decisions, runs): P (runs, decisions), sequences."""
        runs = torch.arange(len(log_probabilities))
        below = log_probabilities.detach().exp().cumsum(dim=2)
        at = torch.zeros_like(runs)
        recorded = []
        for numbers in drawn:
            # The last action takes what rounding leaves of 1.
            action = (numbers[:, None] >= below[runs, at, :-1]).sum(dim=1)
            recorded.append(log_probabilities[runs, at, action])
            at = self._following[runs, at, action]
        return torch.stack(recorded, dim=1), at


def _config(tree: DecisionTree) -> NetworkConfig:
    return NetworkConfig(growth_points=len(tree.actions) - 1)


def _starting_weights(run: Run) -> Mapping[str, Tensor]:
    if run.start is not None:
        return run.start
    return PolicyNetwork.seeded(_config(run.tree), run.seed).state_dict()
