"""DQN: its arithmetic by hand, repeatable, and it learns."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from espalier_agent.evaluation.evaluate import evaluate
from espalier_agent.learners.learning import LearningError, LearningProgress
from espalier_agent.policies.policy import Policy
from espalier_agent.tables.game import Game, Returns
from espalier_agent.tables.tree import Reward, decision_tree
from espalier_core.types.outcomes import OutcomeTable
from espalier_lab.learners.dqn import DEFAULT, DqnConfig, Replay, double_targets, exploring, learn

MakeTable = Callable[..., OutcomeTable]
ENCODERS = ("lstm", "graph")


def quick(**changes: object) -> DqnConfig:
    return DEFAULT.model_copy(update={"episodes": 40, "batch": 16, **changes})


def same(one: Policy, other: Policy) -> bool:
    ours, theirs = one.network.state_dict(), other.network.state_dict()
    return all(torch.equal(ours[key], theirs[key]) for key in ours)


def test_targets_by_hand() -> None:
    """Two states of three actions; the network chooses among the legal ones, the target network says their worth."""
    legal = torch.tensor([[True, True, True], [True, False, True]])
    values = torch.tensor([[1.0, 2.0, 3.0], [5.0, 9.0, 4.0]])
    later = torch.tensor([[10.0, 20.0, 30.0], [50.0, 90.0, 40.0]])
    rewards, next_states = torch.tensor([0.5, 0.5, 0.5]), torch.tensor([0, 1, 2])
    # State 0: the third is chosen, worth 30. State 1: the second is illegal, the first chosen, worth 50. 2: over.
    assert double_targets(rewards, next_states, values, later, legal).tolist() == [30.5, 50.5, 0.5]


def test_exploration_is_shared_among_legal_actions() -> None:
    legal = torch.tensor([[True, True, True, True], [True, False, False, True]])
    values = torch.tensor([[1.0, 2.0, 0.0, 0.0], [1.0, 9.0, 9.0, 2.0]])
    torch.testing.assert_close(
        exploring(values, legal, 0.4), torch.tensor([[0.1, 0.7, 0.1, 0.1], [0.2, 0.0, 0.0, 0.8]])
    )


def test_replay_forgets_the_oldest() -> None:
    replay = Replay(4)
    generator = torch.Generator().manual_seed(0)

    def held() -> set[tuple[int, int]]:
        states, actions = replay.sample(200, generator)
        return set(zip(states.tolist(), actions.tolist(), strict=True))

    replay.add(torch.tensor([0, 1, 2]), torch.tensor([5, 6, 7]))
    assert (len(replay), held()) == (3, {(0, 5), (1, 6), (2, 7)})
    replay.add(torch.tensor([3, 4]), torch.tensor([8, 9]))
    assert (len(replay), held()) == (4, {(1, 6), (2, 7), (3, 8), (4, 9)})
    replay.add(torch.arange(10, 17), torch.arange(10, 17))
    assert (len(replay), held()) == (4, {(n, n) for n in range(13, 17)})


@pytest.mark.parametrize("encoder", ENCODERS)
def test_the_same_seed_gives_the_same_policy(make_table: MakeTable, encoder: str) -> None:
    tables = [make_table(lambda actions: sum(actions) / 10, points=2, decisions=2), make_table(lambda a: a[0] / 9)]
    config = quick(time_jitter=0.1)
    first = learn(tables, config=config, encoder=encoder, seed=3)
    assert same(first, learn(tables, config=config, encoder=encoder, seed=3))
    assert not same(first, learn(tables, config=config, encoder=encoder, seed=4))
    assert first.network.config.encoder == encoder
    assert (first.lineage.learner, first.lineage.episodes) == ("dqn", 40)


@pytest.mark.sweep("encoders and rewards")
@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize("reward", [Reward.OVER_MEAN, Reward.OVER_NOTHING])
def test_it_finds_the_best_sequence(make_table: MakeTable, encoder: str, reward: Reward) -> None:
    """Growing point 1 twice, then nothing is best by far; each table has its own numbers of actions."""
    three = make_table(
        lambda actions: 0.3 + 0.15 * sum(a == b for a, b in zip(actions, (1, 1, 2), strict=True)),
        points=2,
        decisions=3,
        model="two",
    )
    one = make_table(lambda actions: 0.6 if actions == (1, 1) else 0.4, points=1, decisions=2, model="one")
    policy = learn(
        [three, one],
        config=quick(episodes=8_000, batch=256, learning_rate=3e-3, reward=reward),
        encoder=encoder,
        seed=0,
    )
    result = evaluate(policy, [three, one])
    assert [(table.rank, table.accuracy) for table in result.tables] == [(1, 0.75), (1, 0.6)]


@pytest.mark.sweep("encoders and rewards")
@pytest.mark.parametrize("encoder", ENCODERS)
def test_the_papers_reward_is_carried_back(make_table: MakeTable, encoder: str) -> None:
    """What comes after the second decision alone teaches the first."""
    table = make_table(lambda actions: 0.6 if actions == (0, 1) else 0.4, decisions=2)
    config = quick(episodes=4_000, batch=128, learning_rate=3e-3, reward=Reward.PAPER)
    result = evaluate(learn([table], config=config, encoder=encoder, seed=0), [table])
    assert result.tables[0].rank == 1


def test_values_come_near_the_tables(make_table: MakeTable) -> None:
    """One decision, two actions: the scores become the returns themselves, which standardised are 1 and -1."""
    table = make_table(lambda actions: 0.2 if actions == (0,) else 0.7)
    policy = learn([table], config=quick(episodes=3_000, batch=64, reward=Reward.PAPER), encoder="lstm", seed=0)
    game = Game(decision_tree(table), policy.vocabulary, policy.network.config, Returns.STANDARDISED)
    torch.testing.assert_close(game.logits(policy.network), torch.tensor([[-1.0, 1.0]]), atol=0.05, rtol=0)


def test_learning_goes_on_from_a_parent(make_table: MakeTable) -> None:
    tables = [make_table(lambda actions: actions[0] / 9)]
    parent = learn(tables, config=quick(), seed=0)
    child = learn(tables, config=quick(), seed=0, parent=parent)
    assert child.lineage.parent == parent.identity
    assert not same(child, parent)


def test_progress_counts_up_to_the_end(make_table: MakeTable) -> None:
    seen: list[LearningProgress] = []
    learn([make_table(lambda actions: actions[0] / 9)], config=quick(episodes=25), progress=seen.append)
    assert [(each.episodes, each.total_episodes) for each in seen] == [(10, 30), (20, 30), (30, 30)]


def test_what_is_not_finite_stops_learning(make_table: MakeTable) -> None:
    with pytest.raises(LearningError, match="no longer finite|loss is"):
        learn([make_table(lambda actions: actions[0] / 9)], config=quick(learning_rate=1e38, gradient_norm=1e38))
    with pytest.raises(LearningError, match="no outcome table"):
        learn([])
