"""Policies are judged by tables: figures by hand, baselines."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier_agent.evaluation.evaluate import evaluate
from espalier_agent.learners.reinforce import PAPER, learn
from espalier_agent.policies.policy import Policy
from espalier_agent.tables.tree import Floats, Indices, Reward, decision_tree, potentials, step_rewards
from espalier_core.types.outcomes import OutcomeTable, reward

MakeTable = Callable[..., OutcomeTable]


def test_figures_of_a_small_table_by_hand(make_table: MakeTable) -> None:
    accuracies = {(0, 0): 0.2, (0, 1): 0.9, (1, 0): 0.6, (1, 1): 0.5}
    table = make_table(lambda actions: accuracies[actions], decisions=2)
    learnt = learn([table], config=PAPER.model_copy(update={"episodes": 1}))
    (result,) = evaluate(learnt, [table]).tables
    place = {"Deepen(layer0)": 0, "Nothing": 1}
    reached = accuracies[tuple(place[action] for action in result.actions)]  # type: ignore[index]
    assert result.accuracy == reached
    assert result.rank == sorted(accuracies.values(), reverse=True).index(reached) + 1
    assert result.regret == pytest.approx(0.9 - reached)
    assert (result.none.accuracy, result.none.rank) == (0.5, 3)
    assert (result.best.accuracy, result.best.actions) == (0.9, ("Deepen(layer0)", "Nothing"))
    assert result.random_mean_accuracy == pytest.approx(0.55)
    assert result.sequences == 4


def test_equal_accuracies_share_a_rank(make_table: MakeTable, policy: Policy) -> None:
    (result,) = evaluate(policy, [make_table(lambda _: 0.5, decisions=2)]).tables
    assert (result.rank, result.none.rank, result.regret) == (1, 1, 0.0)


def test_baselines_of_the_papers_tables(policy: Policy, tables: dict[str, OutcomeTable]) -> None:
    (result,) = evaluate(policy, [tables["cnn1-early"]]).tables
    assert (result.none.accuracy, result.none.rank) == (0.6221, 60)
    assert result.random_mean_accuracy == pytest.approx(0.6895, abs=5e-5)
    assert result.best.actions == ("Deepen(block1)", "Deepen(block1)", "Deepen(block0)")


def test_json_form(policy: Policy, tables: dict[str, OutcomeTable]) -> None:
    shown = json.loads(json.dumps(evaluate(policy, list(tables.values())).to_json()))
    assert shown["policy"] == "default"
    assert len(shown["tables"]) == 6
    assert set(shown["tables"][0]) >= {"table", "rank", "accuracy", "regret", "actions", "none", "best"}


def test_a_policy_is_judged_on_a_model_it_does_not_know(policy: Policy, make_table: MakeTable) -> None:
    table = make_table(lambda actions: 0.5 + 0.01 * len(set(actions)), points=5, decisions=2)
    (result,) = evaluate(policy, [table]).tables
    assert 1 <= result.rank <= 36


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
