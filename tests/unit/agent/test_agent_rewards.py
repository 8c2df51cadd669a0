"""Dense rewards change when something is earned and nothing about what is best."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier_agent.tables.tree import Floats, Indices, Reward, decision_tree, potentials, step_rewards
from espalier_core.types.outcomes import OutcomeTable, reward

DENSE = [each for each in Reward if each is not Reward.PAPER]


@st.composite
def trees(draw: st.DrawFn) -> tuple[Indices, Floats]:
    """Draw a full tree, as `DecisionTree.next_states` counts its states, and what its sequences are worth."""
    width, decisions = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    states = sum(width**depth for depth in range(decisions))
    next_states = 1 + np.arange(states * width).reshape(states, width)
    last = states - width ** (decisions - 1)
    next_states[last:] -= states
    worth = st.floats(-100, 1000, allow_nan=False).map(lambda value: round(value, 3))
    returns = draw(st.lists(worth, min_size=width**decisions, max_size=width**decisions))
    return next_states, np.array(returns)


def action_values(next_states: Indices, rewards: Floats, returns: Floats) -> Floats:
    """Return the optimal Q of each state and action, by the slow way: the best of all ways to continue."""
    last = len(next_states) - len(returns) // next_states.shape[1]

    def best_from(state: int) -> float:
        if state >= last:
            return float(rewards[state].max())
        return max(
            float(worth) + best_from(int(after))
            for worth, after in zip(rewards[state], next_states[state], strict=True)
        )

    values = rewards.copy()
    for state, action in itertools.product(range(last), range(next_states.shape[1])):
        values[state, action] += best_from(int(next_states[state, action]))
    return values


@pytest.mark.parametrize("kind", DENSE)
@given(trees())
def test_the_order_of_actions_is_the_papers_in_every_state(kind: Reward, tree: tuple[Indices, Floats]) -> None:
    """Q differs by the state's potential alone, so every optimal policy of the one is optimal for the other."""
    next_states, returns = tree
    papers = action_values(next_states, step_rewards(next_states, returns, Reward.PAPER), returns)
    ours = action_values(next_states, step_rewards(next_states, returns, kind), returns)
    np.testing.assert_allclose(ours, papers - potentials(next_states, returns, kind)[:, None], atol=1e-6)


@pytest.mark.parametrize("kind", Reward)
@given(trees())
def test_an_episode_earns_the_papers_reward_less_the_first_states_potential(
    kind: Reward, tree: tuple[Indices, Floats]
) -> None:
    next_states, returns = tree
    rewards, start = step_rewards(next_states, returns, kind), potentials(next_states, returns, kind)[0]
    states, width = next_states.shape
    decisions = round(np.log(len(returns)) / np.log(width)) if width > 1 else states
    for sequence, actions in enumerate(itertools.product(range(width), repeat=decisions)):
        at, earned = 0, 0.0
        for action in actions:
            earned += rewards[at, action]
            at = int(next_states[at, action])
        assert at == sequence
        assert earned == pytest.approx(returns[sequence] - start, abs=1e-6)


def test_by_hand(make_table: Callable[..., OutcomeTable]) -> None:
    """Two decisions between growing (0) and nothing (1): returns are those of accuracies .1, .2, .3, .6."""
    accuracies = {(0, 0): 0.1, (0, 1): 0.2, (1, 0): 0.3, (1, 1): 0.6}
    tree = decision_tree(make_table(lambda actions: accuracies[actions], decisions=2))
    a, b, c, d = (reward(accuracy) for accuracy in (0.1, 0.2, 0.3, 0.6))
    next_states, returns = np.array(tree.next_states), np.array([a, b, c, d])
    expected: dict[Reward, list[list[float]]] = {
        Reward.PAPER: [[0, 0], [a, b], [c, d]],
        Reward.OVER_NOTHING: [[b - d, 0], [a - b, 0], [c - d, 0]],
        Reward.OVER_MEAN: [
            [(a + b) / 2 - (a + b + c + d) / 4, (c + d) / 2 - (a + b + c + d) / 4],
            [(a - b) / 2, (b - a) / 2],
            [(c - d) / 2, (d - c) / 2],
        ],
        Reward.OVER_BEST: [[b - d, 0], [a - b, 0], [c - d, 0]],
    }
    for kind in Reward:
        np.testing.assert_allclose(step_rewards(next_states, returns, kind), expected[kind], atol=1e-9)
