"""The benchmark of the learners judges what it says it judges."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bench.cases import agent as bench
from bench.cases.agent import (
    BASELINES,
    Split,
    batched,
    experiments,
    generalisation,
    one_at_a_time,
    shuffled,
    without_network,
)
from bench.printing import Table
from espalier_agent.evaluation.evaluate import greedy_sequence
from espalier_agent.learners.expected import FIT, learn
from espalier_agent.tables.tree import decision_tree
from espalier_core.types.outcomes import OutcomeTable

MakeTable = Callable[..., OutcomeTable]


@pytest.fixture
def ours(make_table: MakeTable) -> dict[str, list[OutcomeTable]]:
    """Return three tables of one model of ours and two of another, with the seeds' figures."""

    def seeded(model: str, scenario: str, points: int) -> OutcomeTable:
        plain = make_table(lambda actions: 0.5 + 0.01 * sum(actions), points, 3, model=model, scenario=scenario)
        sequences = [
            {**outcome.to_json(), "accuracies": (outcome.accuracy - 0.01, outcome.accuracy + 0.01)}
            for outcome in plain.sequences
        ]
        return OutcomeTable.model_validate({**plain.to_json(), "sequences": sequences, "seeds": (0, 1)})

    return {
        "one": [seeded("one", scenario, 3) for scenario in ("20%", "50%", "80%")],
        "two": [seeded("two", scenario, 1) for scenario in ("20%", "80%")],
    }


def judged(splits: list[Split]) -> list[str]:
    return sorted(each.table.name for split in splits for each in split.judged)


def test_nothing_of_the_papers_that_is_judged_was_learnt(tables: dict[str, OutcomeTable]) -> None:
    found = experiments(list(tables.values()), {})
    assert list(found) == [
        f"{what} left out, {model}" for what in ("a scenario", "the model") for model in ("cnn1", "cnn2")
    ]
    for name, splits in found.items():
        assert judged(splits) == sorted(table for table in tables if table.startswith(name.rpartition(" ")[2]))
        for split in splits:
            left_out = "scenario" if "scenario" in name else "model"
            of_judged = {getattr(each.table, left_out) for each in split.judged}
            assert not of_judged & {getattr(table, left_out) for table in split.learnt}
            assert len(split.learnt) == (4 if left_out == "scenario" else 3)


def test_nothing_of_ours_that_is_judged_was_learnt(
    tables: dict[str, OutcomeTable], ours: dict[str, list[OutcomeTable]]
) -> None:
    paper = list(tables.values())
    found = experiments(paper, ours)
    names = {model: [table.name for table in of_model] for model, of_model in ours.items()}
    for model, other in (("one", "two"), ("two", "one")):
        splits = found[f"a scenario left out, {model} alone"]
        assert judged(splits) == sorted(names[model])
        for split in splits:
            assert {table.name for table in split.learnt} == set(names[model]) - set(judged([split]))
        (split,) = found[f"the paper's tables learnt, {model}"]
        assert ([*split.learnt], judged([split])) == (paper, names[model])
        (split,) = found[f"the paper's and {other} learnt, {model}"]
        assert ([*split.learnt], judged([split])) == ([*paper, *ours[other]], names[model])
    assert len(found) == 4 + 6


def test_shuffling_deals_the_same_accuracies_again(
    tables: dict[str, OutcomeTable], ours: dict[str, list[OutcomeTable]]
) -> None:
    (dealt,) = shuffled([tables["cnn1-late"]], 0)
    before, after = decision_tree(tables["cnn1-late"]), decision_tree(dealt)
    assert sorted(before.accuracies) == sorted(after.accuracies)
    assert sum(one != other for one, other in zip(before.accuracies, after.accuracies, strict=True)) > 50
    assert shuffled([tables["cnn1-late"]], 0) == (dealt,)
    assert shuffled([tables["cnn1-late"]], 1) != (dealt,)
    for table in shuffled(ours["one"], 0):
        assert OutcomeTable.model_validate(table.to_json()) == table, "figures of seeds contradict the mean"


def test_baselines_are_the_tables_own_figures(tables: dict[str, OutcomeTable]) -> None:
    (split,) = experiments(list(tables.values()), {})["the model left out, cnn1"]
    none = without_network([split], BASELINES["none"])
    expected = [0.7391 - 0.6221, 0.6827 - 0.5912, 0.7348 - 0.6045]
    assert none["regret"]["mean"] == pytest.approx(sum(expected) / 3)
    # 1, 0, 2 is best on the average of cnn2's three tables.
    average = without_network([split], BASELINES["best on average"])
    assert average["rank"]["mean"] == pytest.approx((4 + 13 + 11) / 3)
    assert without_network([split], BASELINES["noise: best of one seed"]) is None


def test_of_other_actions_no_sequence_is_best_on_average(
    tables: dict[str, OutcomeTable], ours: dict[str, list[OutcomeTable]]
) -> None:
    found = experiments(list(tables.values()), ours)
    assert without_network(found["the paper's tables learnt, two"], BASELINES["best on average"]) is None
    assert without_network(found["the paper's tables learnt, one"], BASELINES["best on average"]) is not None
    # Both seeds agree about every difference.
    noise = without_network(found["a scenario left out, two alone"], BASELINES["noise: best of one seed"])
    assert noise["regret"]["mean"] == pytest.approx(0.0, abs=1e-9)


def test_figures_are_those_of_the_policies_learnt_one_by_one(ours: dict[str, list[OutcomeTable]]) -> None:
    first, second = ours["two"]
    splits = experiments([], {"two": ours["two"]})["a scenario left out, two alone"]
    found = generalisation({"alone": splits}, 2, 5)["alone"]["fit"]["regret"]
    regrets = []
    for seed in range(2):
        config = FIT.model_copy(update={"updates": 5})
        of_seed = []
        for learnt, other in ((first, second), (second, first)):
            tree = decision_tree(other)
            reached = tree.sequences.index(greedy_sequence(learn([learnt], config=config, seed=seed), tree))
            of_seed.append(max(tree.accuracies) - tree.accuracies[reached])
        regrets.append(sum(of_seed) / 2)
    assert found["mean"] == pytest.approx(sum(regrets) / 2)
    assert found["n"] == 2


def test_both_loops_count_the_episodes_they_play(tables: dict[str, OutcomeTable]) -> None:
    chosen = [tables["cnn1-early"]]
    assert one_at_a_time(chosen, 3) > 0
    assert batched(chosen, 2, 1000) > one_at_a_time(chosen, 3)


def test_what_is_printed_holds_every_figure() -> None:
    figure = {
        "regret": {"mean": 0.0123, "half_width": 0.0045, "n": 2},
        "rank": {"mean": 7.25, "half_width": 1.5, "n": 2},
    }
    speed = {"one_at_a_time": [80.0], "batched": [90000.0], "ratio": 1125.0}
    seeds = {"seeds": [{"seed": 0, "seconds": 3.25, "ranks": {"cnn1-early": 1}}], "at_once_seconds": 2.0}
    judged = {"fit": figure, "none": {"regret": {"mean": 0.5}, "rank": {"mean": 60.0}}}
    assert ["batched", "90,000", "1"] in bench.speed_table(speed).rows
    table, first = bench.fit_table(seeds)
    assert isinstance(table, Table)
    assert table.rows == [["0", "1", "3.2"]]
    assert "rank 1 on every table: 1 of 1 seeds" in str(first)
    rows = bench.judged_table("some", judged).rows
    assert rows == [["fit", ".0123", ".0045", "7.2", "1.5"], ["none", ".5000", "", "60.0", ""]]
