"""What is judged beside a policy: baselines without a network."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from bodies import ask

from espalier_agent.evaluation.evaluate import best_on_average, evaluate, heuristic_sequence, random_mean_of_ten
from espalier_agent.learners.expected import ExpectedConfig, learn
from espalier_agent.tables.tree import decision_tree
from espalier_core.types.job import Fallback
from espalier_core.types.outcomes import OutcomeTable
from espalier_trainer.growth.advisor import FallbackPolicy

MakeTable = Callable[..., OutcomeTable]


@pytest.mark.parametrize("left", [9.0, 10.0, 14.0, 19.9, 50.0])
def test_the_heuristic_is_the_trainers(make_table: MakeTable, left: float) -> None:
    table = make_table(lambda _: 0.5, points=2, decisions=3)
    times = (left, max(left - 4.0, 0), max(left - 8.0, 0))
    table = table.model_copy(
        update={"sequences": tuple(o.model_copy(update={"time_left_s": times}) for o in table.sequences)}
    )
    tree = decision_tree(table)
    at, chosen = 0, []
    for _ in range(3):
        state = tree.states[at]
        request = ask(state.architecture, state.time_left_s)
        chosen.append(tree.actions.index(FallbackPolicy(Fallback.HEURISTIC).choose(request)))
        at = tree.next_states[at][chosen[-1]]
    assert heuristic_sequence(tree) == tuple(chosen)


def test_best_on_average_by_hand(make_table: MakeTable) -> None:
    one = decision_tree(make_table(lambda actions: (0.9, 0.7, 0.1)[actions[0]], points=2))
    two = decision_tree(make_table(lambda actions: (0.1, 0.7, 0.5)[actions[0]], points=2, scenario="other"))
    assert best_on_average([one]) == (0,)
    assert best_on_average([one, two]) == (1,)
    assert best_on_average([]) is None
    assert best_on_average([one, decision_tree(make_table(lambda _: 0.5, points=1))]) is None


def test_ten_random_sequences_depend_on_the_seed_alone(tables: dict[str, OutcomeTable]) -> None:
    tree = decision_tree(tables["cnn1-early"])
    means = [random_mean_of_ten(tree, seed) for seed in range(200)]
    assert means[3] == random_mean_of_ten(tree, 3)
    assert len(set(means)) > 190
    assert sum(means) / 200 == pytest.approx(0.6895, abs=0.003)


def test_evaluation_shows_the_average_of_the_tables_learnt_alone(tables: dict[str, OutcomeTable]) -> None:
    learnt = [tables["cnn1-early"], tables["cnn1-middle"]]
    policy = learn(learnt, config=ExpectedConfig(updates=1))
    shown = {result.table: result for result in evaluate(policy, list(tables.values())).tables}
    # Early and middle of this model: the sum of both standardised rewards is greatest for 0, 1, 0.
    assert {result.best_on_average.actions for result in shown.values() if result.best_on_average} == {
        ("Deepen(block0)", "Deepen(block1)", "Deepen(block0)")
    }
    assert shown["cnn1-late"].best_on_average is not None
    assert shown["cnn1-late"].best_on_average.accuracy == 0.6439
    alone = evaluate(policy, [tables["cnn2-late"]]).tables[0]
    assert alone.best_on_average is None
