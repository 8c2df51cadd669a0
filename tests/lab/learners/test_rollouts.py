"""All tables as one set of tensors: the same numbers as each table by itself, and no illegal action."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from espalier_agent.learners.learning import LearningError, Lesson, Start, start_learning
from espalier_agent.learners.reinforce import PAPER
from espalier_agent.tables.game import Games
from espalier_agent.tables.tree import Reward
from espalier_core.types.outcomes import OutcomeTable
from espalier_lab.learners.rollouts import Rollouts


@pytest.fixture(params=["lstm", "graph"])
def start(request: pytest.FixtureRequest, make_table: Callable[..., OutcomeTable]) -> Start:
    """Return the beginning of learning from tables with unlike numbers of actions and of decisions."""
    tables = [
        make_table(lambda actions: (3 * sum(actions) + len(actions)) % 7 / 10, points=points, decisions=decisions)
        for points, decisions in ((1, 2), (3, 1), (2, 3))
    ]
    return start_learning(Lesson(tables, PAPER, request.param, seed=1))


def on(start: Start) -> Rollouts:
    return Rollouts(Games(start.games, start.network, start.vocabulary), Reward.PAPER)


def test_probabilities_are_those_of_each_table_alone(start: Start) -> None:
    rollouts = on(start)
    together = rollouts.games.log_probabilities(
        start.network, shifts=torch.tensor([0.1, 0.0, -0.1], dtype=torch.float64)
    )
    for table, (game, shift) in enumerate(zip(start.games, (0.1, 0.0, -0.1), strict=True)):
        rows = rollouts.games.game_of_state == table
        alone = game.log_probabilities(start.network, shift=shift)
        torch.testing.assert_close(together[rows][rollouts.legal[rows]], alone.flatten())
    assert torch.isneginf(together[~rollouts.legal]).all()


def test_episodes_are_sequences_of_their_tables_and_never_illegal(start: Start) -> None:
    rollouts = on(start)
    uniform = rollouts.legal / rollouts.legal.sum(dim=1, keepdim=True)
    played = rollouts.play(uniform, 400, torch.Generator().manual_seed(0))
    assert rollouts.legal[played.states, played.actions][played.playing].all()
    assert played.playing.sum(dim=1).tolist() == [2] * 400 + [1] * 400 + [3] * 400
    # Every sequence of every table is met, those of each table among its own, and its reward is its table's.
    assert set(played.ended[:400].tolist()) == set(range(4))
    assert set(played.ended[400:800].tolist()) == set(range(4, 8))
    assert set(played.ended[800:].tolist()) == set(range(8, 8 + 27))
    earned = (rollouts.rewards[played.states, played.actions] * played.playing).sum(dim=1)
    returns = torch.cat([game.returns for game in start.games]).float()
    torch.testing.assert_close(earned, returns[played.ended])


def test_what_a_table_forbids_is_never_played(start: Start) -> None:
    start.games[2].legal[:, 1] = False
    rollouts = on(start)
    probabilities = rollouts.games.log_probabilities(start.network).detach().exp()
    played = rollouts.play(probabilities, 500, torch.Generator().manual_seed(0))
    assert set(played.actions[1000:][played.playing[1000:]].tolist()) == {0, 2}


def test_answers_that_are_not_finite_are_refused(start: Start) -> None:
    rollouts = on(start)
    answers = torch.zeros(rollouts.legal.shape)
    rollouts.checked(answers.masked_fill(~rollouts.legal, -torch.inf))
    answers[0, 0] = torch.nan
    with pytest.raises(LearningError, match="no longer finite; lower the learning rate"):
        rollouts.checked(answers)
