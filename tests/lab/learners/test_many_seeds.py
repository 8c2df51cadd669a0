"""Many runs of the exact learner at once are each the run alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from espalier_agent.learners.expected import ExpectedConfig, learn, objective
from espalier_agent.learners.learning import LearningError, Lesson, start_learning
from espalier_agent.policies.policy import Policy
from espalier_agent.tables.game import Games
from espalier_core.types.outcomes import OutcomeTable
from espalier_lab.learners.many_seeds import SeededRun, Wanted, learn_many

MakeTable = Callable[..., OutcomeTable]
SHORT = ExpectedConfig(updates=3)


def dealt(table: OutcomeTable, by: int) -> OutcomeTable:
    """Return the table with its accuracies moved on among its sequences."""
    moved = [table.sequences[(place + by) % len(table.sequences)].accuracy for place in range(len(table.sequences))]
    pairs = zip(table.sequences, moved, strict=True)
    sequences = tuple(outcome.model_copy(update={"accuracy": accuracy}) for outcome, accuracy in pairs)
    return table.model_copy(update={"sequences": sequences})


def assert_alike(one: Policy, other: Policy) -> None:
    assert one.lineage == other.lineage
    for name, value in other.network.state_dict().items():
        # Three steps of up to .003: a gradient of almost 0 is mostly rounding, and Adam makes a step of it.
        torch.testing.assert_close(one.network.state_dict()[name], value, rtol=1e-3, atol=1e-4)


def test_gradients_are_those_of_each_run_alone(tables: dict[str, OutcomeTable]) -> None:
    chosen = [tables["cnn1-early"], tables["cnn2-late"]]
    starts = [start_learning(Lesson(chosen, SHORT, "graph", seed)) for seed in range(4)]
    games = Games(starts[0].games, starts[0].network, starts[0].vocabulary)
    names = [name for name, _ in starts[0].network.named_parameters()]
    alone = [dict(start.network.named_parameters()) for start in starts]
    together = {name: torch.stack([own[name].detach() for own in alone]).requires_grad_() for name in names}
    shifts = 0.1 * torch.randn(4, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    returns = torch.stack([games.returns.roll(place) for place in range(4)])
    wanted_of = torch.vmap(Wanted(starts[0].network, games, SHORT).of, in_dims=(0, 0, 0, None))
    found = torch.autograd.grad(wanted_of(together, returns, shifts, 0.3).sum(), [together[name] for name in names])
    for place, start in enumerate(starts):
        games.returns = returns[place]
        slow, _, _ = objective(games, games.log_probabilities(start.network, shifts=shifts[place]), 0.3, 1.0)
        expected = torch.autograd.grad(slow, [alone[place][name] for name in names])
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one[place], other, rtol=1e-3, atol=1e-5)
            assert other.abs().max() > 0


@pytest.mark.parametrize("jitter", [0.0, 0.1])
def test_each_run_is_the_one_alone(tables: dict[str, OutcomeTable], jitter: float) -> None:
    chosen = (tables["cnn1-early"], tables["cnn2-late"])
    config = SHORT.model_copy(update={"time_jitter": jitter})
    found = learn_many([SeededRun(chosen, seed) for seed in range(3)], config=config)
    for seed, policy in enumerate(found):
        assert_alike(policy, learn(chosen, config=config, seed=seed))
    weights = torch.stack([policy.network.state_dict()["decider.of_state.weight"] for policy in found])
    assert (weights - weights.roll(1, 0)).abs().amax(dim=(1, 2)).min() > 0.1, "seeds do not differ"


def test_runs_whose_sequences_are_worth_something_else_are_learnt_beside(make_table: MakeTable) -> None:
    """Tables that differ in actions and decisions, each run's dealt otherwise."""
    unlike = (
        make_table(lambda actions: 0.2 + 0.1 * len(set(actions)) + 0.01 * actions[0], points=2, decisions=2),
        make_table(lambda actions: 0.1 + 0.2 * actions.count(0), points=1, decisions=3, scenario="other"),
    )
    runs = [SeededRun(tuple(dealt(table, by) for table in unlike), 5) for by in (0, 1, 2)]
    found = learn_many(runs, config=SHORT)
    assert len({policy.version for policy in found}) == 3
    for run, policy in zip(runs, found, strict=True):
        assert_alike(policy, learn(run.tables, config=SHORT, seed=5))


def test_same_runs_same_policies(make_table: MakeTable) -> None:
    runs = [SeededRun((make_table(lambda actions: 0.5 + 0.1 * actions[0], points=2),), seed) for seed in (3, 3, 4)]
    one, same, other = learn_many(runs, config=SHORT, name="mine")
    again = learn_many(runs, config=SHORT, name="mine")
    assert (one.version, other.version) == (again[0].version, again[2].version)
    assert one.version != other.version
    assert_alike(one, same)
    assert one.name == "mine"


@pytest.mark.parametrize(
    "changes", [{"time_budget_s": 90.0}, {"architecture": None, "model": "cnn1"}, {"sequences": ()}]
)
def test_runs_that_are_not_alike_are_refused(make_table: MakeTable, changes: dict[str, object]) -> None:
    table = make_table(lambda actions: 0.5, points=3)
    runs = [SeededRun((table,), 0), SeededRun((table.model_copy(update=changes),), 7)]
    with pytest.raises(LearningError, match="seed 7 learns other models or times than that of seed 0; learn at once"):
        learn_many(runs, config=SHORT)


def test_no_run_and_answers_that_are_not_finite_are_refused(make_table: MakeTable) -> None:
    with pytest.raises(LearningError, match="give at least one seed"):
        learn_many([])
    runs = [SeededRun((make_table(lambda actions: 0.5 + 0.1 * actions[0], points=2),), 0)]
    with pytest.raises(LearningError, match="lower the learning rate"):
        learn_many(runs, config=SHORT.model_copy(update={"learning_rate": 1e30}))
