"""A policy is judged by the place of its greedy sequence among all."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from espalier_agent.evaluation.evaluate import evaluate
from espalier_agent.learners.reinforce import PAPER, learn
from espalier_agent.policies.policy import Policy
from espalier_core.types.outcomes import OutcomeTable

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
