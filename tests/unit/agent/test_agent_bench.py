"""The benchmark of the learners judges what it says it judges."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from espalier_agent.tree import decision_tree
from espalier_api.outcomes import OutcomeTable

SOURCE = Path(__file__).parents[3] / "benchmarks" / "agent.py"


@pytest.fixture(scope="module")
def bench() -> Iterator[ModuleType]:
    specification = importlib.util.spec_from_file_location("benchmarks_agent", SOURCE)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[specification.name] = module
    specification.loader.exec_module(module)
    yield module
    del sys.modules[specification.name]


def test_nothing_that_is_judged_was_learnt(bench: ModuleType, tables: dict[str, OutcomeTable]) -> None:
    experiments = bench.splits(list(tables.values()))
    assert list(experiments) == [
        f"left-out {what}, {model}" for what in ("scenario", "model") for model in ("cnn1", "cnn2")
    ]
    for name, experiment in experiments.items():
        assert sorted(table.name for split in experiment for table in split.judged) == sorted(
            table for table in tables if table.startswith(name.rpartition(" ")[2])
        )
        for split in experiment:
            left_out = "scenario" if "scenario" in name else "model"
            judged = {getattr(table, left_out) for table in split.judged}
            assert not judged & {getattr(table, left_out) for table in split.learnt}
            assert len(split.learnt) == (4 if left_out == "scenario" else 3)


def test_shuffling_deals_the_same_accuracies_anew(bench: ModuleType, tables: dict[str, OutcomeTable]) -> None:
    (dealt,) = bench.shuffled([tables["cnn1-late"]], 0)
    before, after = decision_tree(tables["cnn1-late"]), decision_tree(dealt)
    assert sorted(before.accuracies) == sorted(after.accuracies)
    assert sum(one != other for one, other in zip(before.accuracies, after.accuracies, strict=True)) > 50
    assert bench.shuffled([tables["cnn1-late"]], 0) == (dealt,)


def test_intervals_are_students(bench: ModuleType) -> None:
    # n = 2, deviation √2 about 2: 12.706·√2/√2.
    assert bench.spread([1.0, 3.0]) == {"mean": 2.0, "half_width": pytest.approx(12.706), "n": 2}


def test_baselines_are_the_tables_own_figures(bench: ModuleType, tables: dict[str, OutcomeTable]) -> None:
    (split,) = bench.splits(list(tables.values()))["left-out model, cnn1"]
    none = bench.without_network([split], bench.BASELINES["none"])
    expected = [0.7391 - 0.6221, 0.6827 - 0.5912, 0.7348 - 0.6045]
    assert none["regret"]["mean"] == pytest.approx(sum(expected) / 3)
    # 1, 0, 2 is best on the average of cnn2's three tables.
    average = bench.without_network([split], bench.BASELINES["best on average"])
    assert average["rank"]["mean"] == pytest.approx((4 + 13 + 11) / 3)


def test_both_loops_count_the_episodes_they_play(bench: ModuleType, tables: dict[str, OutcomeTable]) -> None:
    chosen = [tables["cnn1-early"]]
    assert bench.one_at_a_time(chosen, 3) > 0
    assert bench.batched(chosen, 2, 1000) > bench.one_at_a_time(chosen, 3)
