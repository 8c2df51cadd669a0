"""PPO and DQN: their arithmetic by hand, repeatable, and they learn. `test_core` compares PPO's core with another's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest
import torch

from espalier_agent.evaluation.evaluate import evaluate
from espalier_agent.learners.learning import LearningError, LearningProgress
from espalier_agent.policies.policy import Policy
from espalier_agent.tables.game import Game, Returns
from espalier_agent.tables.tree import Reward, decision_tree
from espalier_core.types.outcomes import OutcomeTable
from espalier_lab.learners import dqn, ppo
from espalier_lab.learners.dqn import Replay, double_targets, exploring
from espalier_lab.learners.ppo import improve

MakeTable = Callable[..., OutcomeTable]
ENCODERS = ("lstm", "graph")


@dataclass(frozen=True)
class Learner:
    """One of both, with what makes its runs short."""

    module: ModuleType
    quick: dict[str, Any]
    best: dict[str, Any]
    """To learn a table to the end."""

    def learn(self, tables: list[OutcomeTable], encoder: str = "lstm", **options: Any) -> Policy:
        changes = options.pop("config", {})
        config = self.module.DEFAULT.model_copy(update={"episodes": 40, **self.quick, **changes})
        found: Policy = self.module.learn(tables, config=config, encoder=encoder, **options)
        return found


PPO = Learner(ppo, {"episodes_per_update": 20}, {"episodes": 6_000, "episodes_per_update": 50})
DQN = Learner(dqn, {"batch": 16}, {"episodes": 8_000, "batch": 256})
both = pytest.mark.parametrize("learner", [PPO, DQN], ids=["ppo", "dqn"])


def same(one: Policy, other: Policy) -> bool:
    ours, theirs = one.network.state_dict(), other.network.state_dict()
    return all(torch.equal(ours[key], theirs[key]) for key in ours)


@both
@pytest.mark.parametrize("encoder", ENCODERS)
def test_the_same_seed_gives_the_same_policy(make_table: MakeTable, learner: Learner, encoder: str) -> None:
    tables = [make_table(lambda actions: sum(actions) / 10, points=2, decisions=2), make_table(lambda a: a[0] / 9)]
    first, again, other = (learner.learn(tables, encoder, config={"time_jitter": 0.1}, seed=seed) for seed in (3, 3, 4))
    assert same(first, again)
    assert first.version == again.version
    assert not same(first, other)
    assert first.network.config.encoder == encoder
    assert (first.lineage.learner, first.lineage.episodes) == (learner.module.__name__.rpartition(".")[2], 40)


@pytest.mark.sweep("encoders and rewards")
@both
@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize("reward", [Reward.PAPER, Reward.OVER_MEAN, Reward.OVER_NOTHING])
def test_it_finds_the_best_sequence(make_table: MakeTable, learner: Learner, encoder: str, reward: Reward) -> None:
    """Growing twice, then nothing is best by far; each table has its own numbers of actions."""
    if learner is DQN and reward is Reward.PAPER:
        # What comes after the second decision alone teaches the first.
        tables = [make_table(lambda actions: 0.6 if actions == (0, 1) else 0.4, decisions=2)]
        config = {"episodes": 4_000, "batch": 128}
    else:
        best = (1, 0, 2) if learner is PPO else (1, 1, 2)
        three = make_table(
            lambda actions: 0.3 + 0.15 * sum(a == b for a, b in zip(actions, best, strict=True)),
            points=2,
            decisions=3,
            model="two",
        )
        one = make_table(lambda actions: 0.6 if actions == (1, 1) else 0.4, decisions=2, model="one")
        tables, config = [three, one], learner.best
    policy = learner.learn(tables, encoder, config={**config, "learning_rate": 3e-3, "reward": reward}, seed=0)
    assert [table.rank for table in evaluate(policy, tables).tables] == [1] * len(tables)


@both
def test_learning_goes_on_from_a_parent(make_table: MakeTable, learner: Learner) -> None:
    tables = [make_table(lambda actions: actions[0] / 9)]
    parent = learner.learn(tables, seed=0)
    child = learner.learn(tables, seed=0, parent=parent)
    assert child.lineage.parent == parent.identity
    assert not same(child, parent)
    with pytest.raises(LearningError, match="decides about 1 growth points, where the tables have 2"):
        learner.learn([make_table(lambda _: 0.5, points=2)], parent=parent)


@pytest.mark.parametrize(("learner", "every"), [(PPO, 20), (DQN, 10)], ids=["ppo", "dqn"])
def test_progress_counts_up_to_the_end(make_table: MakeTable, learner: Learner, every: int) -> None:
    seen: list[LearningProgress] = []
    learner.learn(
        [make_table(lambda actions: actions[0] / 9)], config={"episodes": 5 * every // 2}, progress=seen.append
    )
    assert [(each.episodes, each.total_episodes) for each in seen] == [(n * every, 3 * every) for n in (1, 2, 3)]
    assert learner is DQN or all(0 <= each.mean_accuracy <= 1 / 9 for each in seen)


@both
def test_what_is_not_finite_stops_learning(make_table: MakeTable, learner: Learner) -> None:
    with pytest.raises(LearningError, match="not finite|no longer finite|loss is"):
        learner.learn(
            [make_table(lambda actions: actions[0] / 9)], config={"learning_rate": 1e38, "gradient_norm": 1e38}
        )
    with pytest.raises(LearningError, match="no outcome table"):
        learner.learn([])


def test_the_critic_moves_towards_the_mean_of_what_was_earned() -> None:
    critic = torch.tensor([0.0, 10.0, 5.0])
    improve(critic, torch.tensor([0, 0, 1]), torch.tensor([2.0, 4.0, 20.0]), 0.5)
    assert critic.tolist() == [1.5, 15.0, 5.0]


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


def test_values_come_near_the_tables(make_table: MakeTable) -> None:
    """One decision, two actions: the scores become the returns themselves, which standardised are 1 and -1."""
    table = make_table(lambda actions: 0.2 if actions == (0,) else 0.7)
    policy = DQN.learn([table], config={"episodes": 3_000, "batch": 64, "reward": Reward.PAPER}, seed=0)
    game = Game(decision_tree(table), policy.vocabulary, policy.network.config, Returns.STANDARDISED)
    torch.testing.assert_close(game.logits(policy.network), torch.tensor([[-1.0, 1.0]]), atol=0.05, rtol=0)
