"""Outcome tables and the reward."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest

from espalier_core.files.documents import DocumentError
from espalier_core.types.outcomes import OutcomeTable, read_table, read_tables, reward


def table(**change: object) -> dict[str, Any]:
    sequences = [
        {"actions": list(actions), "time_left_s": [8.0, 5.0], "accuracy": 0.1 * sum(actions)}
        for actions in itertools.product(range(3), repeat=2)
    ]
    whole = {
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


def first(**change: object) -> dict[str, object]:
    """Return the sequences of a table with other values of the first."""
    one, *others = table()["sequences"]
    return {"sequences": [one | change, *others]}


def model(**change: object) -> dict[str, object]:
    """Return an architecture of one layer, and a growth point whose name is the end of a line."""
    layer = {"name": "input", "operator": "Input", **change}
    added = {"name": "linear", "operator": "Linear", "inputs": [""]}
    point = {"id": "\n", "kind": "Linear", "after": "input", "block": "b", "insertion": [added]}
    return {"layers": [layer], "outputs": ["input"], "growthPoints": [point]}


def ended_by_one_of_two() -> list[object]:
    return [
        {"actions": list(actions), "time_left_s": [8.0, 5.0], "accuracy": 0.1}
        for actions in itertools.product(range(2), repeat=2)
    ]


def control(**change: object) -> dict[str, object]:
    return {"name": "restart", "description": "nothing grows", "accuracy": 0.5, **change}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sequences": table()["sequences"][:-1]}, r"sequence \[2, 2\] is missing \(1 in all\)"),
        (first(actions=[0, 1]), r"sequence \[0, 1\] appears twice"),
        (first(actions=[0]), r"sequences\[0\]: 1 actions and 2 times left"),
        (first(actions=[0, 7]), r"sequences\[0\]: action 7 is not among the 3 actions"),
        (first(time_left_s=[11, 1]), r"time left 11.0 is outside the budget of 10.0 s"),
        (first(accuracy=float("nan")), "sequences.0.accuracy: Input should be a finite number"),
        (first(accuracy=1.5), "sequences.0.accuracy: Input should be less than or equal to 1"),
        (first(accuracy=None), "sequences.0.accuracy: Input should be a valid number"),
        (first(accuracy="0.5"), "sequences.0.accuracy: Input should be a valid number"),
        (first(actions=[True, 0]), "sequences.0.actions.0: Input should be a valid integer"),
        (first(actions=[0, -1]), r"sequences\[0\]: action -1 is not among the 3 actions"),
        (first(time_left_s=[8]), r"sequences\[0\]: 2 actions and 1 times left"),
        (first(time_left_s=[5, 8]), r"sequences\[0\]: time left rises from 5.0 to 8.0 s"),
        (first(time_left_s=[8, float("nan")]), "sequences.0.time_left_s.1: .* finite number"),
        ({"sequences": []}, "sequences: Tuple should have at least 1 item"),
        ({"decisions_per_episode": 10**12}, "decisions_per_episode: Input should be less than or equal to 32"),
        ({"decisions_per_episode": 0}, "decisions_per_episode: Input should be greater than or equal to 1"),
        ({"decisions_per_episode": 1.5}, "decisions_per_episode: Input should be a valid integer"),
        ({"actions": []}, "actions: Tuple should have at least 1 item"),
        ({"actions": ["deepen 0", "deepen 0", "nothing"]}, r"actions\[1\]: 'deepen 0' appears twice"),
        ({"time_budget_s": None}, "time_budget_s: Input should be a valid number"),
        ({"time_budget_s": float("inf")}, "time_budget_s: Input should be a finite number"),
        ({"time_budget_s": 0}, "time_budget_s: Input should be greater than 0"),
        ({"adapt_from_s": 10}, "adapt_from_s 10.0 is not before the end of the budget, 10.0"),
        ({"model": ""}, "model: String should have at least 1 character"),
        ({"scenario": "\ud800"}, "scenario: Input should be a valid string, unable to parse raw data as a unicode"),
        ({"actions": ["a", "\ud800", "b"]}, "actions.1: Input should be a valid string"),
        (
            {"actions": [f"deepen {index}" for index in range(200_000)]},
            r"sequence \[0, 3\] is missing \(39999999991 in all\)",
        ),
        (
            {
                "decisions_per_episode": 10_000,
                "sequences": [{"actions": [0] * 10_000, "time_left_s": [1.0] * 10_000, "accuracy": 0.5}],
            },
            "decisions_per_episode: Input should be less than or equal to 32",
        ),
        (
            {"architecture": model(attributes={"kernel": float("nan")})},
            "architecture.layers.0.attributes.kernel.int: Input should be a finite number",
        ),
        ({"architecture": model(parameters=-1)}, "architecture.layers.0.parameters: .* greater than or equal to 0"),
        (
            {"architecture": model(), "actions": ["deepen 0", "nothing"], "sequences": ended_by_one_of_two()},
            r"architecture: growth point '\\n' has a name that cannot be printed",
        ),
        ({"seeds": []}, "seeds: Tuple should have at least 1 item"),
        ({"seeds": [0, 0]}, r"seeds\[1\]: 0 appears twice"),
        (first(accuracies=[0.0, 0.0]), r"sequences\[0\]: 2 accuracies, where the table has 0 seeds"),
        (
            {"seeds": [0, 1, 2]} | first(accuracies=[0.0, 0.0]),
            r"sequences\[0\]: 2 accuracies, where the table has 3 seeds",
        ),
        (
            {"seeds": [0, 1]} | first(accuracies=[0.0, 0.5]),
            r"sequences\[0\]: accuracy 0.0 is not the mean of its accuracies, 0.25000",
        ),
        (
            {"seeds": [0, 1]} | first(accuracies=[0.0, 0.0], accuracy_std=0.1),
            r"sequences\[0\]: accuracy_std 0.1 is not that of its accuracies, 0.00000",
        ),
        (
            {"seeds": [0, 1]} | first(accuracies=[0.0, float("nan")]),
            "sequences.0.accuracies.1: Input should be a finite number",
        ),
        (first(accuracy_std=-0.1), "sequences.0.accuracy_std: .* greater than or equal to 0"),
        ({"controls": [{"name": "restart", "description": ""}]}, "controls.0.accuracy: Field required"),
        ({"controls": [control(), control()]}, r"controls\[1\]: 'restart' appears twice"),
        (
            {"seeds": [0, 1], "controls": [control(accuracies=[0.5, 0.7])]},
            r"controls\[0\]: accuracy 0.5 is not the mean of its accuracies, 0.60000",
        ),
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


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"source": "a", "model": "m", "source": "b"}', "key 'source' appears twice in one object"),
        (b'{"sequences": [{"accuracy": 0.1, "accuracy": 0.9}]}', "key 'accuracy' appears twice in one object"),
        (b"[]", "Input should be a valid dictionary"),
        (b"\xff\xfe", "not JSON text"),
        (b"", "not JSON text"),
        (b"[" * 200_000, "not JSON text"),
        (b"{}", "source: Field required"),
    ],
    ids=["doubled", "doubled inside", "a list", "not text", "empty", "too deep", "nothing in it"],
)
def test_a_file_that_is_no_table_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(content)
    with pytest.raises(DocumentError, match=f"bad.json: {message}"):
        read_table(path)


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    with path.open("wb") as file:
        file.truncate(2**40)  # of holes: it takes no room on the disk
    with pytest.raises(DocumentError, match="bad.json: is larger than 64 MiB"):
        read_table(path)


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.json").mkdir()
    with pytest.raises(DocumentError, match=r"a.json: cannot be read \(Is a directory\)"):
        read_tables(tmp_path)
    with pytest.raises(DocumentError, match=r"none.json: cannot be read \(No such file"):
        read_table(tmp_path / "none.json")


def test_a_table_of_several_seeds_with_controls_is_read_as_it_was_written(tmp_path: Path) -> None:
    sequences = first(accuracy=0.5, accuracies=[0.4, 0.6], accuracy_std=0.14142)
    controls = [control(accuracies=[0.5, 0.5], accuracy_std=0.0), control(name="throughput")]
    loaded = OutcomeTable.model_validate(table(seeds=[3, 4], controls=controls, **sequences))
    path = tmp_path / "t.json"
    path.write_text(json.dumps(loaded.to_json()))
    assert read_table(path) == loaded
    assert loaded.outcome((0, 0)).accuracies == (0.4, 0.6)
    assert [one.accuracy_std for one in loaded.controls or ()] == [0.0, None]


def test_a_table_without_what_was_added_later_is_written_without_it() -> None:
    """Policies name the tables that they were learnt from by the checksum of this."""
    assert OutcomeTable.model_validate(table()).to_json().keys() == table().keys()


def test_an_architecture_must_have_a_growth_point_for_each_action() -> None:
    one = {"layers": [{"name": "input", "operator": "Input"}], "outputs": ["input"]}
    with pytest.raises(ValueError, match="architecture has 0 growth points, where 3 actions need 2"):
        OutcomeTable.model_validate(table(architecture=one))
