"""Episodes played on outcome tables, for learners that learn from samples of them, and their updates."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from espalier_agent.learners.learning import NOT_FINITE, LearningError
from espalier_agent.tables.game import Games
from espalier_agent.tables.tree import Reward


@dataclass(frozen=True, slots=True)
class Episodes:
    """Played episodes, as (episodes, decisions); those of tables with fewer decisions end earlier."""

    states: Tensor
    """State before each decision; 0 after the end."""
    actions: Tensor
    playing: Tensor
    """False after the end."""
    ended: Tensor
    """(episodes,): the index of the sequence among all."""


class Rollouts:
    """Samples episodes from all tables of `games`, their actions numbered as there."""

    def __init__(self, games: Games, reward: Reward) -> None:
        transitions = games.transitions
        self.games = games
        self.legal = games.legal
        """(states, actions)."""
        self.next_states = torch.from_numpy(transitions.next_states)
        """As `Transitions.next_states`: after all states come the ended sequences."""
        rewards = transitions.rewards([np.asarray(game.returns) for game in games.games], reward)
        self.rewards = torch.from_numpy(rewards).float()
        """(states + sequences, actions)."""
        self.decisions = max(game.tree.decisions for game in games.games)
        self.first = torch.from_numpy(transitions.first)
        """First state of each table's episodes."""

    def checked(self, answers: Tensor) -> Tensor:
        """Return logits or log probabilities; raise `LearningError` if one of a legal action is not finite."""
        if not bool(torch.isfinite(answers[self.legal]).all()):
            raise LearningError(NOT_FINITE)
        return answers

    def play(self, probabilities: Tensor, episodes: int, generator: torch.Generator) -> Episodes:
        """Play episodes on each table; actions are drawn by their probabilities (states, actions) in each state."""
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
            at = torch.where(on, self.next_states[state, action], at)
        return Episodes(torch.stack(states, 1), torch.stack(actions, 1), torch.stack(playing, 1), at - count)


def descend(optimizer: torch.optim.Optimizer, loss: Tensor, network: nn.Module, norm: float, updates: int) -> None:
    """Take a step to a smaller loss, gradients clipped to `norm`; raise `LearningError` if it is not finite."""
    if not bool(torch.isfinite(loss)):
        raise LearningError(f"the loss is {loss.item()} after {updates} updates; lower the learning rate")
    optimizer.zero_grad()
    torch.autograd.backward(loss)
    torch.nn.utils.clip_grad_norm_(network.parameters(), norm)
    optimizer.step()
