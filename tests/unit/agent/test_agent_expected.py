"""The exact learner: its expectation equals that of playing, its gradient that of a slow sum, and it fits."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch

from espalier_agent.evaluation.evaluate import evaluate, greedy_sequence
from espalier_agent.learners.expected import FIT, ExpectedConfig, learn, objective
from espalier_agent.learners.learning import LearningError, LearningProgress
from espalier_agent.learners.reinforce import counted_objective
from espalier_agent.learners.reinforce import objective as sampled_objective
from espalier_agent.policies.network import NetworkConfig, PolicyNetwork
from espalier_agent.policies.vocabulary import Vocabulary
from espalier_agent.tables.game import Game, Games, Returns
from espalier_agent.tables.tree import decision_tree
from espalier_core.types.outcomes import OutcomeTable

MakeTable = Callable[..., OutcomeTable]
QUICK = ExpectedConfig(updates=5)


def arena(tables: list[OutcomeTable], encoder: str = "graph") -> tuple[Games, PolicyNetwork]:
    trees = [decision_tree(table) for table in tables]
    vocabulary = Vocabulary.build((), 0)
    network = PolicyNetwork.seeded(NetworkConfig.model_validate({"encoder": encoder, "growthPoints": 3}), 1)
    games = [Game(tree, vocabulary, network.config, Returns.STANDARDISED) for tree in trees]
    return Games(games, network, vocabulary), network


@pytest.fixture
def unlike(make_table: MakeTable) -> list[OutcomeTable]:
    """Return tables that differ in actions and in decisions."""
    return [
        make_table(lambda actions: 0.2 + 0.1 * len(set(actions)), points=2, decisions=2),
        make_table(lambda actions: 0.1 + 0.2 * actions.count(0), points=1, decisions=3, scenario="other"),
    ]


@pytest.mark.parametrize("encoder", ["lstm", "graph"])
def test_many_games_at_once_say_what_each_says_alone(unlike: list[OutcomeTable], encoder: str) -> None:
    games, network = arena(unlike, encoder)
    together = games.log_probabilities(network)
    first = 0
    for game in games.games:
        alone = game.log_probabilities(network)
        torch.testing.assert_close(together[first : first + len(alone), : alone.shape[1]], alone)
        assert bool((together[first : first + len(alone), alone.shape[1] :] == -torch.inf).all())
        first += len(alone)


def test_the_objective_and_its_gradient_are_those_of_a_slow_sum(unlike: list[OutcomeTable]) -> None:
    games, network = arena(unlike)
    fast, returns, accuracies = objective(games, games.log_probabilities(network), 0.3, 0.0)
    terms, slow_returns, slow_accuracies = [], [], []
    for game in games.games:
        rows = game.log_probabilities(network)
        expected = entropy = accuracy = torch.zeros(())
        for sequence in itertools.product(range(rows.shape[1]), repeat=game.tree.decisions):
            at, chance = 0, torch.ones(())
            for action in sequence:
                chance = chance * rows[at, action].exp()
                at = game.tree.next_states[at][action]
            expected = expected + chance * game.returns[at]
            entropy = entropy - chance * chance.log()
            accuracy = accuracy + chance * game.tree.accuracies[at]
        terms.append(expected + 0.3 * entropy)
        slow_returns.append(expected.float())
        slow_accuracies.append(accuracy.float())
    slow = torch.stack(terms).mean().float()
    torch.testing.assert_close(fast, slow)
    torch.testing.assert_close(returns, torch.stack(slow_returns))
    torch.testing.assert_close(accuracies, torch.stack(slow_accuracies).detach())
    parameters = list(network.parameters())
    for ours, theirs in zip(torch.autograd.grad(fast, parameters), torch.autograd.grad(slow, parameters), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-6)


def test_counted_episodes_are_distributed_as_walked_ones(tables: dict[str, OutcomeTable]) -> None:
    """Both against the exact probabilities: Pearson's statistic of 64 cells lies below its 99.99 % point."""
    games, network = arena([tables["cnn1-middle"]])
    (game,) = games.games
    with torch.no_grad():
        chances = game.log_probabilities(network, temperature=1.0)
        exact = games.of_sequences(chances).double().exp()
    episodes = 50_000
    _, counts = game.count(chances, episodes, torch.Generator().manual_seed(0))
    _, ended = game.play(chances, episodes, torch.Generator().manual_seed(1))
    for found in (counts, torch.bincount(ended, minlength=64)):
        assert int(found.sum()) == episodes
        assert float(((found - exact * episodes) ** 2 / (exact * episodes)).sum()) < 117


def test_the_objective_of_counts_is_that_of_the_episodes_counted(tables: dict[str, OutcomeTable]) -> None:
    games, network = arena([tables["cnn2-late"]])
    (game,) = games.games
    recorded, counts = game.count(game.log_probabilities(network), 500, torch.Generator().manual_seed(3))
    one_by_one = torch.repeat_interleave(torch.arange(64), counts)
    returns = game.returns.float()
    torch.testing.assert_close(
        counted_objective(recorded, returns, counts), sampled_objective(recorded[one_by_one], returns[one_by_one])
    )


def test_the_soft_best_distribution_is_the_best(unlike: list[OutcomeTable]) -> None:
    """No step away from it gains return plus entropy."""
    games, _ = arena(unlike)
    best = games.soft_best(0.5)
    torch.testing.assert_close(games.mean_by_game(best, torch.ones(len(best))), torch.ones(2))

    def worth(chances: torch.Tensor) -> torch.Tensor:
        return games.mean_by_game(chances, games.returns - 0.5 * chances.log())

    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        moved = best * (1 + 0.1 * torch.rand(len(best), generator=generator))
        moved = moved / games.mean_by_game(moved, torch.ones(len(best)))[games.game_of_sequence]
        assert bool((worth(moved) < worth(best) + 1e-6).all())


def test_same_seed_same_policy_bit_for_bit(unlike: list[OutcomeTable]) -> None:
    config = QUICK.model_copy(update={"time_jitter": 0.1})
    one, two, other = (learn(unlike, config=config, seed=seed) for seed in (4, 4, 5))
    assert one.version == two.version != other.version


def test_learning_goes_on_from_a_parent_of_fewer_growth_points(
    unlike: list[OutcomeTable], tables: dict[str, OutcomeTable]
) -> None:
    parent = learn(unlike, config=QUICK, name="parent")
    seen: list[LearningProgress] = []
    child = learn([tables["cnn1-early"]], config=QUICK, parent=parent, progress=seen.append)
    assert child.lineage.parent == parent.identity
    assert (child.lineage.learner, child.lineage.episodes) == ("expected", 5 * 64)
    assert [progress.episodes for progress in seen] == [64, 128, 192, 256, 320]


def test_an_objective_that_is_not_finite_ends_learning(unlike: list[OutcomeTable]) -> None:
    with pytest.raises(LearningError, match="lower the learning rate"):
        learn(unlike, config=QUICK.model_copy(update={"learning_rate": 1e30}))


def test_one_agent_is_first_on_all_six_tables_of_the_paper(tables: dict[str, OutcomeTable]) -> None:
    chosen = list(tables.values())
    evaluation = evaluate(learn(chosen, config=FIT, seed=0), chosen)
    assert [result.rank for result in evaluation.tables] == [1] * 6


def test_more_entropy_prefers_what_many_good_sequences_share(make_table: MakeTable) -> None:
    """One sequence is best by a hair and stands alone; all that begin with action 0 are nearly as good."""
    values = {(0, 0): 0.59, (0, 1): 0.59, (1, 0): 0.2, (1, 1): 0.6}
    table = make_table(lambda actions: values[actions], points=1, decisions=2)
    tree = decision_tree(table)
    assert greedy_sequence(learn([table], config=FIT), tree) == (1, 1)
    smooth = FIT.model_copy(update={"entropy_last": 0.5})
    assert greedy_sequence(learn([table], config=smooth), tree)[0] == 0
