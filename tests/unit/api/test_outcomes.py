"""Outcome tables and the reward."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import pytest

from espalier_api.documents import DocumentError
from espalier_api.outcomes import OutcomeTable, read_table, read_tables, reward


def table(**change: object) -> dict[str, object]:
    sequences = [
        {"actions": list(actions), "time_left_s": [8.0, 5.0], "accuracy": 0.1 * sum(actions)}
        for actions in itertools.product(range(3), repeat=2)
    ]
    whole: dict[str, object] = {
        "source": "a test",
        "model": "m",
        "scenario": "early",
        "time_budget_s": 10,
        "adapt_from_s": 2,
        "actions": ["deepen 0", "deepen 1", "nothing"],
        "decisions_per_episode": 2,
        "sequences": sequences,
    }
    return whole | change


def test_reward_stretches_high_accuracies_as_the_paper_says() -> None:
    assert reward(0.6) > reward(0.59) + 4
    assert reward(0) == 0
    assert math.isfinite(reward(1.0))


def test_rank_counts_what_is_better(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps(table()))
    loaded = read_table(path)
    assert loaded.name == "m-early"
    assert loaded.rank(loaded.outcome((2, 2)).accuracy) == 1
    assert loaded.rank(loaded.outcome((1, 2)).accuracy) == 2
    assert loaded.rank(loaded.outcome((0, 0)).accuracy) == 9
    assert read_tables(tmp_path) == (loaded,)


def without_last() -> list[object]:
    sequences = table()["sequences"]
    assert isinstance(sequences, list)
    return sequences[:-1]


def changed_first(**change: object) -> list[object]:
    sequences = table()["sequences"]
    assert isinstance(sequences, list)
    return [sequences[0] | change, *sequences[1:]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sequences": without_last()}, r"sequence \[2, 2\] is missing \(1 in all\)"),
        ({"sequences": changed_first(actions=[0, 1])}, r"sequence \[0, 1\] is there twice"),
        ({"sequences": changed_first(actions=[0])}, r"sequences\[0\]: 1 actions and 2 times left"),
        ({"sequences": changed_first(actions=[0, 7])}, r"sequences\[0\]: action 7 is not among the 3 actions"),
        ({"sequences": changed_first(time_left_s=[11, 1])}, r"time left 11.0 is outside the budget of 10.0 s"),
        ({"sequences": changed_first(accuracy=float("nan"))}, "sequences.0.accuracy: Input should be a finite number"),
        ({"sequences": changed_first(accuracy=1.5)}, "sequences.0.accuracy: Input should be less than or equal to 1"),
        ({"time_budget_s": None}, "time_budget_s: Input should be a valid number"),
    ],
)
def test_a_damaged_table_is_refused_with_file_place_and_reason(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(table(**change)))
    with pytest.raises(DocumentError, match=f"bad.json: .*{message}"):
        read_table(path)


def test_text_that_is_no_json_and_a_folder_without_tables_are_named(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match="holds no outcome table"):
        read_tables(tmp_path)
    (tmp_path / "half.json").write_text('{"source": ')
    with pytest.raises(DocumentError, match=r"half.json: not JSON text"):
        read_tables(tmp_path)


def test_an_architecture_must_have_a_growth_point_for_each_action() -> None:
    one = {"layers": [{"name": "input", "operator": "Input"}], "outputs": ["input"]}
    with pytest.raises(ValueError, match="architecture has 0 growth points, where 3 actions need 2"):
        OutcomeTable.model_validate(table(architecture=one))
