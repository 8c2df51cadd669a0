"""Rewards: what the steps of an episode over an outcome table are worth.

The paper gives 100·tan(a·π/2) of the final accuracy after the last decision and nothing before (Lamelas, equation 2).
The dense rewards add the difference of a potential to it, Φ(next) - Φ(here), with Φ = 0 when the episode is over and
without discount (Ng, Harada and Russell 1999). An episode's rewards then sum to the paper's less Φ of the first
state, which no decision can change: in every state the same actions are best under all of them.

A reward from the slope of the learning curve is not among them: tables hold final accuracies and no curves.
"""

from __future__ import annotations

from enum import StrEnum

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]


class Reward(StrEnum):
    """How a step is rewarded."""

    PAPER = "paper"
    """The sequence's return after the last decision, 0 before."""
    OVER_NOTHING = "over-nothing"
    """What the action changes where nothing else is done from here on; doing nothing is worth 0."""
    OVER_MEAN = "over-mean"
    """What the action changes in the mean over all ways to continue."""
    OVER_BEST = "over-best"
    """What the action takes from the best that could still be reached: never above 0, and 0 for a best action."""

    @classmethod
    def _missing_(cls, value: object) -> Reward:
        raise ValueError(f"reward is {value!r}; choose one of {', '.join(cls)}")


def step_rewards(next_states: Indices, returns: Floats, reward: Reward) -> Floats:
    """Return the reward of each action in each state of a decision tree, (states, actions).

    `next_states` is a `DecisionTree`'s, (states, actions), and `returns` says what each sequence is worth.
    """
    before = potentials(next_states, returns, reward)
    rewards = np.empty(next_states.shape)
    last = _last_level(next_states, returns)
    rewards[:last] = before[next_states[:last]] - before[:last, None]
    rewards[last:] = returns[next_states[last:]] - before[last:, None]
    return rewards


def potentials(next_states: Indices, returns: Floats, reward: Reward) -> Floats:
    """Return Φ of each state, (states,): what it is worth by a plain guess of what follows; 0 for the paper's."""
    values = np.zeros(len(next_states))
    if reward is Reward.PAPER:
        return values
    first, width = _last_level(next_states, returns), next_states.shape[1]
    reached = returns[next_states[first:]]
    while True:
        values[first : first + len(reached)] = _backed_up(reached, reward)
        if first == 0:
            return values
        # The level before has one state for each `width` states of this one.
        first -= len(reached) // width
        reached = values[next_states[first : first + len(reached) // width]]


def _backed_up(reached: Floats, reward: Reward) -> Floats:
    if reward is Reward.OVER_NOTHING:
        nothing: Floats = reached[:, -1]
        return nothing
    backed_up: Floats = reached.mean(axis=1) if reward is Reward.OVER_MEAN else reached.max(axis=1)
    return backed_up


def _last_level(next_states: Indices, returns: Floats) -> int:
    """Return the first state of the last decision: states are ordered by depth, and each sequence follows one."""
    width: int = next_states.shape[1]
    return len(next_states) - len(returns) // width
