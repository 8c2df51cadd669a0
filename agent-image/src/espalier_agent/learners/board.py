"""All tables that are learnt from in one set of tensors, so that a step of learning is a few operations for all.

Scenarios of one starting model share its architectures: the paper's six tables have 126 states, and 20 models.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from espalier_agent.learners.learning import LearningError, Start
from espalier_agent.network import PolicyNetwork, masked_log_probabilities
from espalier_agent.rewards import Reward, step_rewards


@dataclass(frozen=True, slots=True)
class Episodes:
    """Episodes that were played, as (episodes, decisions); those of tables with fewer decisions end earlier."""

    states: Tensor
    """Before each decision; 0 behind the end."""
    actions: Tensor
    playing: Tensor
    """False behind the end."""
    ended: Tensor
    """(episodes,): which of all sequences it was."""


class Board:
    """The states of all tables behind one another, their actions numbered as the network's outputs are.

    Action i deepens growth point i and the last one does nothing, for every table: those that a table does not have
    are not legal there.
    """

    def __init__(self, start: Start, reward: Reward) -> None:
        """Put the tables of a learning run together."""
        games = start.games
        models = {each.fingerprint: each for game in games for each in game.architectures}
        place = {fingerprint: index for index, fingerprint in enumerate(models)}
        self._prepared = start.network.prepare(tuple(models.values()), start.vocabulary)
        self._models = torch.tensor([place[state.architecture.fingerprint] for g in games for state in g.tree.states])
        self._left = torch.cat([game.time_left_s for game in games])
        self._budget = torch.cat([game.time_budget_s for game in games])
        self.table_of = torch.tensor([table for table, game in enumerate(games) for _ in game.tree.states])
        self.decisions = max(game.tree.decisions for game in games)
        with torch.no_grad():
            width = self.logits(start.network).shape[1]
        states = len(self.table_of)
        self.legal = torch.zeros(states, width, dtype=torch.bool)
        """(states, actions)."""
        self.following = torch.zeros(states, width, dtype=torch.long)
        """(states, actions): the next state, or behind all states the sequence that has ended; 0 where not legal."""
        self.rewards = torch.zeros(states, width)
        """(states, actions); 0 where not legal."""
        self.accuracies = torch.cat([game.accuracies for game in games])
        """Of all sequences."""
        firsts, sequences = [], 0
        for table, game in enumerate(games):
            rows = (self.table_of == table).nonzero().squeeze(1)
            firsts.append(int(rows[0]))
            own = game.following.clone()
            last = len(own) - len(game.returns) // own.shape[1]
            own[:last] += firsts[-1]
            own[last:] += states + sequences
            worth = step_rewards(np.asarray(game.following), np.asarray(game.returns), reward)
            columns = torch.tensor([*range(own.shape[1] - 1), width - 1])
            self.legal[rows[:, None], columns] = game.legal
            self.following[rows[:, None], columns] = own
            self.rewards[rows[:, None], columns] = torch.tensor(worth).float()
            sequences += len(game.returns)
        self.first = torch.tensor(firsts)
        """The state that each table's episodes begin with."""

    def logits(self, network: PolicyNetwork, shifts: Tensor | None = None) -> Tensor:
        """Return what the network says of all states, (states, actions), legal or not.

        `shifts` (tables,) moves all times left of each table by a share of the budget.
        """
        left = self._left if shifts is None else self._left + shifts[self.table_of] * self._budget
        return network.logits(self._prepared, self._models, left, self._budget)

    def log_probabilities(self, network: PolicyNetwork, shifts: Tensor | None = None) -> Tensor:
        """Return the log probabilities of all actions in all states, -inf where not legal."""
        return masked_log_probabilities(self.logits(network, shifts), self.legal)

    def checked(self, answers: Tensor) -> Tensor:
        """Return logits or log probabilities; `LearningError` where one of a legal action is not finite."""
        if not bool(torch.isfinite(answers[self.legal]).all()):
            raise LearningError("the network's answers are not finite any more; lower the learning rate")
        return answers

    def shifts(self, jitter: float, generator: torch.Generator) -> Tensor | None:
        """Draw how far to shift each table's times left: uniform shares of the budget up to `jitter`, either way."""
        if jitter == 0:
            return None
        return jitter * (2 * torch.rand(len(self.first), generator=generator, dtype=torch.float64) - 1)

    def play(self, probabilities: Tensor, episodes: int, generator: torch.Generator) -> Episodes:
        """Play episodes on each table, actions drawn by their probabilities (states, actions) in each state."""
        count = len(self.legal)
        at = self.first.repeat_interleave(episodes)
        states, actions, playing = [], [], []
        for _ in range(self.decisions):
            on = at < count
            state = torch.where(on, at, 0)
            action = torch.multinomial(probabilities[state], 1, generator=generator).squeeze(1)
            states.append(state)
            actions.append(action)
            playing.append(on)
            at = torch.where(on, self.following[state, action], at)
        return Episodes(torch.stack(states, 1), torch.stack(actions, 1), torch.stack(playing, 1), at - count)
