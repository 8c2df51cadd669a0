"""Double DQN over outcome tables, for models with any number of actions (van Hasselt, Guez and Silver 2016).

The value of an action is its score by the network, which other learners read as a policy: a model with more growth
points has more values, and the maximum is over its own. The learnt policy decides by the largest value; the
probabilities that it reports are the values' softmax, which ranks actions and does not say how often they are played.

With the paper's reward it often stays below the best sequence of three decisions. A reason may be that states grown in
another order look alike to the network where the tables tell them apart, so that the value carried back through such a
state is the mean of unlike ones; that was not isolated. A dense reward is the remedy and the default: it pays at each
step what the table expects from there, so that less must be carried back.

Replay stores the action taken in a state. The next state and the reward come from the table and never change.
"""

from __future__ import annotations

from typing import Final

import torch
from pydantic import Field
from torch import Tensor

from espalier_agent.learners.learning import (
    Learner,
    LearningProgress,
    ProgressCallback,
    Start,
    time_shifts,
)
from espalier_agent.policies.network import PolicyNetwork
from espalier_agent.tables.game import Games, Returns
from espalier_agent.tables.tree import Reward
from espalier_core.base import Record
from espalier_lab.learners.rollouts import Rollouts, descend


class DqnConfig(Record):
    """Hyperparameters of double DQN."""

    episodes: int = Field(default=60_000, ge=1)
    """Number of episodes of all tables together; rounded up to whole updates."""
    episodes_per_update: int = Field(default=10, ge=1)
    """Number of episodes of each table between two steps of the optimiser."""
    replay: int = Field(default=20_000, ge=1)
    """Size of the replay memory, in decisions; the oldest are dropped."""
    batch: int = Field(default=1024, ge=1)
    """Decisions drawn from the replay for a step of the optimiser."""
    exploration: float = Field(default=1.0, ge=0, le=1)
    """Share of decisions taken at random at the beginning, falling linearly over the first half of learning."""
    least_exploration: float = Field(default=0.1, ge=0, le=1)
    """Share of decisions taken at random from then on."""
    target_every: int = Field(default=20, ge=1)
    """Updates between two copies of the network to the target network."""
    returns: Returns = Returns.STANDARDISED
    """Return of a final accuracy."""
    reward: Reward = Reward.OVER_MEAN
    """Distribution of the return over an episode's steps."""
    learning_rate: float = Field(default=4e-3, gt=0)
    """Learning rate of Adam, falling linearly to 0 at the end."""
    gradient_norm: float = Field(default=10.0, gt=0)
    """Gradients are clipped to this norm."""
    time_jitter: float = Field(default=0.0, ge=0, le=0.5)
    """Maximum shift of times left, as a share of the budget: each update draws one per table, either way."""


DEFAULT: Final = DqnConfig()
"""For several tables at once: on the paper's six a mean regret of 0.0032 to 0.0036 in about 10 s of one core (2 seeds
of `graph`, 1 of `lstm`). That is worse than PPO."""


class Replay:
    """The latest decisions, a ring of (state, action)."""

    def __init__(self, size: int) -> None:
        """Hold up to `size` decisions."""
        self._decisions = torch.zeros(size, 2, dtype=torch.long)
        self._added = 0

    def __len__(self) -> int:
        return min(self._added, len(self._decisions))

    def add(self, states: Tensor, actions: Tensor) -> None:
        """Store decisions; if there are more than it holds, the last of them."""
        size = len(self._decisions)
        new = torch.stack([states, actions], dim=1)
        places = (self._added + torch.arange(len(new)))[-size:] % size
        self._decisions[places] = new[-size:]
        self._added += len(new)

    def sample(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw states and actions, uniformly and with replacement."""
        drawn = self._decisions[torch.randint(len(self), (count,), generator=generator)]
        return drawn[:, 0], drawn[:, 1]


def train(start: Start, config: DqnConfig, progress: ProgressCallback) -> int:
    """Play, store transitions, and learn values from the replay memory."""
    network = start.network
    games = Games(start.games, network, start.vocabulary)
    rollouts = Rollouts(games, config.reward)
    target = PolicyNetwork.with_weights(network.config, network.state_dict())
    replay = Replay(config.replay)
    generator = start.generator()
    optimizer = torch.optim.Adam(network.parameters(), lr=config.learning_rate, fused=True)
    batch = config.episodes_per_update * len(start.tables)
    updates = -(-config.episodes // batch)
    for update in range(updates):
        for group in optimizer.param_groups:
            group["lr"] = config.learning_rate * (1.0 - update / updates)
        shifts = time_shifts(config.time_jitter, len(games.games), generator)
        values = rollouts.checked(games.logits(network, shifts))

        # Play a batch, ε-greedy, and store its decisions.
        random = max(config.least_exploration, config.exploration * (1.0 - 2.0 * update / updates))
        chances = exploring(values.detach(), rollouts.legal, random)
        played = rollouts.play(chances, config.episodes_per_update, generator)
        replay.add(played.states[played.playing], played.actions[played.playing])

        # Targets: reward plus the value of the best next action.
        if update % config.target_every == 0:
            target.load_state_dict(network.state_dict())
        with torch.no_grad():
            later = games.logits(target, shifts)
        states, actions = replay.sample(config.batch, generator)
        rewards, next_states = rollouts.rewards[states, actions], rollouts.next_states[states, actions]
        goals = double_targets(rewards, next_states, values.detach(), later, rollouts.legal)

        # One step of the optimiser.
        loss = torch.nn.functional.mse_loss(values[states, actions], goals)
        descend(optimizer, loss, network, config.gradient_norm, update)
        accuracy = games.accuracies[played.ended].mean().item()
        progress(LearningProgress((update + 1) * batch, updates * batch, loss.item(), accuracy))
    return updates * batch


def exploring(values: Tensor, legal: Tensor, random: float) -> Tensor:
    """Return ε-greedy probabilities of the actions, (states, actions): 0 for illegal ones."""
    best = values.masked_fill(~legal, -torch.inf).argmax(dim=1)
    chances = random * legal / legal.sum(dim=1, keepdim=True)
    chances[torch.arange(len(best)), best] += 1.0 - random
    return chances


def double_targets(rewards: Tensor, next_states: Tensor, values: Tensor, later: Tensor, legal: Tensor) -> Tensor:
    """Return r + Q_target(s', argmax Q(s', ·)) over the legal actions of s'; r alone where the episode is over.

    `next_states` counts states first and ended sequences after them; `values` and `later` are the outputs of the
    network and the target network for all states and actions.
    """
    chosen = values.masked_fill(~legal, -torch.inf).argmax(dim=1)
    value = later.gather(1, chosen[:, None]).squeeze(1)
    on = next_states < len(legal)
    return rewards + torch.where(on, value[torch.where(on, next_states, 0)], 0.0)


LEARNER: Final = Learner("dqn", train, {"default": DEFAULT})
learn = LEARNER.learn
