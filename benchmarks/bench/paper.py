"""The paper's learner for many runs at once: algorithms 3 and 4 of Lamelas, one update after each episode.

One run cannot be batched, as it updates after each episode, and an update of three small LSTMs is mostly overhead.
Runs are independent, so their weights are stacked and each operation is done for all of them (`torch.vmap`). A run has
its own table, first weights, temperature and random numbers; no gradient or moment of one enters another (tests).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from espalier_agent.policies.network import NetworkConfig, PolicyNetwork
from espalier_agent.policies.policy import DEFAULT_EMBEDDING_SEED
from espalier_agent.policies.vocabulary import Vocabulary
from espalier_agent.tables.game import Game, Returns
from espalier_agent.tables.tree import DecisionTree

LEARNING_RATE, LEARNING_RATE_DECAY, TEMPERATURE_DECAY = 1e-4, 0.99, 0.9
"""Lamelas 6.5."""
DECAY_EVERY = 500
"""Episodes between two decays of both."""
Weights = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One agent that learns from one table."""

    tree: DecisionTree
    seed: int
    start: Weights | None = None
    """Weights to continue from (transfer); None: those of a fresh network of the seed."""
    temperature: float = 1.0
    """Initial softmax temperature; 1: no softmax action selection."""


@dataclass(frozen=True, slots=True)
class Learnt:
    """The weights after a run; algorithm 3's O and the final accuracy of each of its episodes."""

    weights: Weights
    objectives: npt.NDArray[np.float64]
    accuracies: npt.NDArray[np.float64]


def learn_many(runs: Sequence[Run], episodes: int) -> list[Learnt]:
    """Let all runs learn, an update after each episode; the tables need equal numbers of actions and decisions."""
    stacked = Stacked([run.tree for run in runs])
    starts = [
        PolicyNetwork.seeded(stacked.config, run.seed).state_dict() if run.start is None else run.start for run in runs
    ]
    weights = {name: value.requires_grad_() for name, value in stack(starts).items()}
    optimizer = torch.optim.Adam(weights.values(), lr=LEARNING_RATE, fused=True)
    decisions = runs[0].tree.decisions
    drawn = [torch.rand(episodes, decisions, generator=torch.Generator().manual_seed(run.seed)) for run in runs]
    first_temperatures = torch.tensor([run.temperature for run in runs])
    objectives, accuracies = torch.empty(2, len(runs), episodes, dtype=torch.float64)
    for episode in range(episodes):
        decays = episode // DECAY_EVERY
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * LEARNING_RATE_DECAY**decays
        temperatures = (first_temperatures * TEMPERATURE_DECAY**decays).clamp_min(1.0)
        log_probabilities = torch.log_softmax(stacked.logits(weights) / temperatures[:, None, None], dim=2)
        recorded, ended = stacked.play(log_probabilities, [numbers[episode] for numbers in drawn])
        objective = (-recorded * stacked.returns.gather(1, ended[:, None])).mean(dim=1)
        optimizer.zero_grad()
        torch.autograd.backward(objective.sum())
        optimizer.step()
        objectives[:, episode] = objective.detach()
        accuracies[:, episode] = stacked.accuracies.gather(1, ended[:, None]).squeeze(1)
    return [
        Learnt({name: value[run].detach().clone() for name, value in weights.items()}, *figures)
        for run, figures in enumerate(zip(objectives.numpy(), accuracies.numpy(), strict=True))
    ]


def greedy(weights: Sequence[Weights], trees: Sequence[DecisionTree]) -> list[tuple[int, ...]]:
    """Return for each agent the actions that it takes on its tree, each the most probable one."""
    with torch.no_grad():
        best = Stacked(trees).logits(stack(weights)).argmax(dim=2).tolist()
    found = []
    for chosen, tree in zip(best, trees, strict=True):
        at, actions = 0, []
        for _ in range(tree.decisions):
            actions.append(chosen[at])
            at = tree.next_states[at][actions[-1]]
        found.append(tuple(actions))
    return found


def stack(networks: Sequence[Weights]) -> dict[str, Tensor]:
    """Return the state dicts of networks of one shape as one, copied."""
    return {name: torch.stack([network[name].detach() for network in networks]) for name in networks[0]}


class UnrolledLstm(nn.LSTM):
    """`nn.LSTM` of one layer as a loop of plain operations, for `torch.vmap` cannot map PyTorch's own."""

    def forward(self, inputs: Tensor) -> tuple[Tensor, None]:
        """Return the hidden states after each step from zero states: (n, steps, features) → (n, steps, hidden)."""
        given = nn.functional.linear(inputs, self.weight_ih_l0, self.bias_ih_l0 + self.bias_hh_l0)
        hidden = cell = inputs.new_zeros(len(inputs), self.hidden_size)
        found = []
        for step in given.unbind(1):
            entering, forgetting, candidate, leaving = (step + hidden @ self.weight_hh_l0.T).chunk(4, dim=1)
            cell = forgetting.sigmoid() * cell + entering.sigmoid() * candidate.tanh()
            hidden = leaving.sigmoid() * cell.tanh()
            found.append(hidden)
        return torch.stack(found, dim=1), None


class Stacked:
    """The tables of many runs as tensors, and a network to call with each run's weights."""

    def __init__(self, trees: Sequence[DecisionTree]) -> None:
        vocabulary = Vocabulary.build((), DEFAULT_EMBEDDING_SEED)
        self.config = NetworkConfig(encoder="lstm", growth_points=len(trees[0].actions) - 1)
        self._network = PolicyNetwork.with_weights(self.config, PolicyNetwork.seeded(self.config, 0).state_dict())
        for module in self._network.modules():
            if isinstance(module, nn.LSTM):
                module.__class__ = UnrolledLstm
        games = [Game(tree, vocabulary, self.config, Returns.PAPER) for tree in trees]
        embedded = [game.prepared["embedded"] for game in games]
        longest = max(each.shape[1] for each in embedded)
        padded = [nn.functional.pad(each, (0, 0, 0, longest - each.shape[1])) for each in embedded]
        lengths = torch.stack([game.prepared["lengths"] for game in games])
        self._states = (
            {"embedded": torch.stack(padded), "lengths": lengths},
            torch.stack([game.models for game in games]),
            torch.stack([game.time_left_s for game in games]),
            torch.stack([game.time_budget_s for game in games]),
        )
        self._next_states = torch.stack([game.next_states for game in games])
        self.accuracies = torch.stack([game.accuracies for game in games])
        self.returns = torch.stack([game.returns for game in games]).float()

    def logits(self, weights: dict[str, Tensor]) -> Tensor:
        """Return those of all actions in all states, (runs, states, actions)."""
        found: Tensor = vmap(lambda own, *states: functional_call(self._network, own, states))(weights, *self._states)
        return found

    def play(self, log_probabilities: Tensor, drawn: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Play an episode of each run by its numbers from [0, 1): P (runs, decisions), and its sequence (runs,)."""
        runs = torch.arange(len(log_probabilities))
        below = log_probabilities.detach().exp().cumsum(dim=2)
        at = torch.zeros_like(runs)
        recorded = []
        for numbers in torch.stack(list(drawn), dim=1):
            # The last action takes what rounding leaves of 1.
            action = (numbers[:, None] >= below[runs, at, :-1]).sum(dim=1)
            recorded.append(log_probabilities[runs, at, action])
            at = self._next_states[runs, at, action]
        return torch.stack(recorded, dim=1), at
