"""PPO: its arithmetic by hand and by slow loops, repeatable, and it learns."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
import torch

from espalier_agent.evaluation.evaluate import evaluate
from espalier_agent.learners.learning import LearningError, LearningProgress
from espalier_agent.policies.policy import Policy
from espalier_agent.tables.tree import Reward
from espalier_core.types.outcomes import OutcomeTable
from espalier_lab.learners.core import advantages, clipped_loss, entropy
from espalier_lab.learners.ppo import DEFAULT, PpoConfig, improve, learn

MakeTable = Callable[..., OutcomeTable]
ENCODERS = ("lstm", "graph")


def quick(**changes: object) -> PpoConfig:
    return DEFAULT.model_copy(update={"episodes": 40, "episodes_per_update": 20, **changes})


def same(one: Policy, other: Policy) -> bool:
    ours, theirs = one.network.state_dict(), other.network.state_dict()
    return all(torch.equal(ours[key], theirs[key]) for key in ours)


def test_advantages_by_hand() -> None:
    """δ = (1 + 2 - 1, 0 + 4 - 2, 3 + 0 - 4) = (2, 2, -1)."""
    rewards, values = torch.tensor([[1.0, 0.0, 3.0]]), torch.tensor([[1.0, 2.0, 4.0]])
    assert advantages(rewards, values, 0.0).tolist() == [[2.0, 2.0, -1.0]]
    assert advantages(rewards, values, 0.5).tolist() == [[2.75, 1.5, -1.0]]
    # With λ = 1: what is earned from here on, 4, 3, 3, less the value.
    assert advantages(rewards, values, 1.0).tolist() == [[3.0, 1.0, -1.0]]


@pytest.mark.parametrize("gae", [0.0, 0.3, 1.0])
def test_advantages_are_the_sum_of_surprises(gae: float) -> None:
    generator = torch.Generator().manual_seed(0)
    rewards, values = (torch.randn(5, 4, generator=generator) for _ in range(2))
    after = torch.cat([values[:, 1:], torch.zeros(5, 1)], dim=1)
    estimates = advantages(rewards, values, gae)
    for episode, step in itertools.product(range(5), range(4)):
        surprises = (rewards + after - values)[episode]
        expected = sum(gae ** (later - step) * surprises[later].item() for later in range(step, 4))
        assert estimates[episode, step].item() == pytest.approx(expected, abs=1e-5)


def test_the_critic_moves_towards_the_mean_of_what_was_earned() -> None:
    critic = torch.tensor([0.0, 10.0, 5.0])
    improve(critic, torch.tensor([0, 0, 1]), torch.tensor([2.0, 4.0, 20.0]), 0.5)
    assert critic.tolist() == [1.5, 15.0, 5.0]


def test_the_loss_is_clipped_where_the_policy_has_moved_far_enough() -> None:
    before = torch.log(torch.tensor([0.5, 0.5, 0.5, 0.5]))
    now = torch.log(torch.tensor([0.55, 0.9, 0.1, 0.9])).requires_grad_()
    # Ratios 1.1, 1.8, .2, 1.8; the second is past 1 + ε and good, the third below 1 - ε and bad: both give no more.
    loss = clipped_loss(now, before, torch.tensor([1.0, 1.0, -1.0, -1.0]), 0.2)
    assert loss.item() == pytest.approx(-(1.1 + 1.2 - 0.8 - 1.8) / 4, rel=1e-5)
    torch.autograd.backward(loss)
    assert now.grad is not None
    assert [value != 0 for value in now.grad.tolist()] == [True, False, False, True]


def test_entropy_counts_legal_actions_alone() -> None:
    rows = torch.tensor([[math.log(0.5), math.log(0.5), -math.inf], [0.0, -math.inf, -math.inf]], requires_grad=True)
    assert entropy(rows).tolist() == pytest.approx([math.log(2), 0.0])
    torch.autograd.backward(entropy(rows).sum())
    assert rows.grad is not None
    assert torch.isfinite(rows.grad).all()


@pytest.mark.parametrize("encoder", ENCODERS)
def test_the_same_seed_gives_the_same_policy(make_table: MakeTable, encoder: str) -> None:
    tables = [make_table(lambda actions: sum(actions) / 10, points=2, decisions=2), make_table(lambda a: a[0] / 9)]
    config = quick(time_jitter=0.1)
    first = learn(tables, config=config, encoder=encoder, seed=3)
    assert same(first, learn(tables, config=config, encoder=encoder, seed=3))
    assert first.version == learn(tables, config=config, encoder=encoder, seed=3).version
    assert not same(first, learn(tables, config=config, encoder=encoder, seed=4))
    assert first.network.config.encoder == encoder
    assert (first.lineage.learner, first.lineage.episodes) == ("ppo", 40)


@pytest.mark.sweep("encoders and rewards")
@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize("reward", [Reward.PAPER, Reward.OVER_NOTHING])
def test_it_finds_the_best_sequence(make_table: MakeTable, encoder: str, reward: Reward) -> None:
    """Growing point 1, then 0, then nothing is best by far; each table has its own numbers of actions."""
    three = make_table(
        lambda actions: 0.3 + 0.15 * sum(a == b for a, b in zip(actions, (1, 0, 2), strict=True)),
        points=2,
        decisions=3,
        model="two",
    )
    one = make_table(lambda actions: 0.6 if actions == (1, 1) else 0.4, points=1, decisions=2, model="one")
    policy = learn(
        [three, one],
        config=quick(episodes=6_000, episodes_per_update=50, learning_rate=3e-3, reward=reward),
        encoder=encoder,
        seed=0,
    )
    result = evaluate(policy, [three, one])
    assert [(table.rank, table.accuracy) for table in result.tables] == [(1, 0.75), (1, 0.6)]


def test_learning_goes_on_from_a_parent(make_table: MakeTable) -> None:
    tables = [make_table(lambda actions: actions[0] / 9)]
    parent = learn(tables, config=quick(), encoder="lstm", seed=0)
    child = learn(tables, config=quick(), seed=0, parent=parent)
    assert child.lineage.parent == parent.identity
    assert not same(child, parent)
    with pytest.raises(LearningError, match="decides about 1 growth points, where the tables have 2"):
        learn([make_table(lambda _: 0.5, points=2)], config=quick(), parent=parent)


def test_progress_counts_up_to_the_end(make_table: MakeTable) -> None:
    seen: list[LearningProgress] = []
    learn([make_table(lambda actions: actions[0] / 9)], config=quick(episodes=50), progress=seen.append)
    assert [(each.episodes, each.total_episodes) for each in seen] == [(20, 60), (40, 60), (60, 60)]
    assert all(0 <= each.mean_accuracy <= 1 / 9 for each in seen)


def test_what_is_not_finite_stops_learning(make_table: MakeTable) -> None:
    with pytest.raises(LearningError, match="not finite|loss is nan"):
        learn([make_table(lambda actions: actions[0] / 9)], config=quick(learning_rate=1e38, gradient_norm=1e38))
    with pytest.raises(LearningError, match="no outcome table"):
        learn([])
