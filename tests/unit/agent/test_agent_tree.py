"""A table unfolds into the states that Algorithm 4 passes through."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from espalier_agent.data import carried_tables, named_architecture, table_sets
from espalier_agent.tables.tree import TableError, decision_tree, read_playable, table_digest
from espalier_core.growth.deepen import deepened
from espalier_core.types.outcomes import OutcomeTable
from espalier_lab.growth.environment import OutcomeEnvironment

Tables = dict[str, OutcomeTable]


def test_every_sequence_is_walked_through_the_states_it_grew(tables: Tables) -> None:
    table = tables["cnn1-early"]
    tree = decision_tree(table)
    assert len(tree.states) == 1 + 4 + 16
    for outcome in table.sequences:
        at = 0
        model = named_architecture("cnn1")
        for place, action in enumerate(outcome.actions):
            state = tree.states[at]
            assert state.architecture == model
            assert state.time_left_s == pytest.approx(outcome.time_left_s[place], abs=5.0)
            if action < 3:
                model = deepened(model, f"block{action}")
            at = tree.next_states[at][action]
        assert tree.sequences[at] == outcome.actions
        assert tree.accuracies[at] == outcome.accuracy


def test_time_left_is_the_mean_over_the_runs_that_share_the_decisions(make_table: Callable[..., OutcomeTable]) -> None:
    base = make_table(lambda _: 0.5, points=1, decisions=2)
    lefts = {(0, 0): (60.0, 50.0), (0, 1): (62.0, 54.0), (1, 0): (58.0, 40.0), (1, 1): (60.0, 44.0)}
    sequences = tuple(outcome.model_copy(update={"time_left_s": lefts[outcome.actions]}) for outcome in base.sequences)
    tree = decision_tree(base.model_copy(update={"sequences": sequences}))
    assert [state.time_left_s for state in tree.states] == [60.0, 52.0, 42.0]


def test_order_of_sequences_in_the_file_does_not_matter(tables: Tables) -> None:
    table = tables["cnn2-late"]
    backwards = table.model_copy(update={"sequences": table.sequences[::-1]})
    assert decision_tree(backwards) == decision_tree(table)


def test_a_model_that_is_not_known_by_name_is_refused(make_table: Callable[..., OutcomeTable]) -> None:
    table = make_table(lambda _: 0.5).model_copy(update={"architecture": None})
    with pytest.raises(TableError, match=r"table chain-middle: has no architecture, and 'chain' is not a model known"):
        decision_tree(table)


def test_a_named_model_with_another_number_of_actions_is_refused(make_table: Callable[..., OutcomeTable]) -> None:
    table = make_table(lambda _: 0.5).model_copy(update={"architecture": None, "model": "cnn1"})
    with pytest.raises(TableError, match="has 2 actions, where 'cnn1' with its 3 growth points needs 4"):
        decision_tree(table)


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        (
            ["deepen layer1", "deepen layer0", "do nothing"],
            r"actions\[0\], 'deepen layer1', is in the place of 'layer0'",
        ),
        (["first", "layer0", "do nothing"], r"actions\[1\], 'layer0', is in the place of 'layer1'"),
        (["do nothing", "other", "deepen layer1"], r"actions\[2\], 'deepen layer1', is in the place of doing nothing"),
    ],
)
def test_labels_in_another_order_than_the_growth_points_are_refused(
    make_table: Callable[..., OutcomeTable], tmp_path: Path, actions: list[str], message: str
) -> None:
    """Sequences are of actions by number: what was learnt of one point would be taken for another's."""
    path = tmp_path / "mixed.json"
    path.write_text(json.dumps(make_table(lambda _: 0.5, points=2, actions=actions).to_json()))
    with pytest.raises(TableError, match=rf"mixed\.json: table chain-middle: {message}; bring actions and sequences"):
        read_playable(path)


@pytest.mark.parametrize("actions", [["deepen 1", "deepen xlayer0", "layer1 layer0 less"], ["a layer0", "b", "c"]])
def test_labels_that_name_no_growth_point_or_its_own_are_taken(
    make_table: Callable[..., OutcomeTable], actions: list[str]
) -> None:
    tree = decision_tree(make_table(lambda _: 0.5, points=2, actions=actions))
    assert [str(action) for action in tree.actions] == ["Deepen(layer0)", "Deepen(layer1)", "Nothing"]


@pytest.mark.parametrize("name", table_sets())
def test_tables_that_are_carried_are_taken(name: str) -> None:
    assert all(decision_tree(table).states for table in carried_tables(name))


def test_digest_tells_tables_apart(tables: Tables) -> None:
    assert len({table_digest(table) for table in tables.values()}) == 6


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"inputs": ("nowhere",)}, "layer 'layer0.grown.0.linear' reads 'layer0.grown.0.nowhere', which does not come"),
        ({"name": "a", "twice": True}, "layer 'layer0.grown.0.a' appears twice"),
    ],
)
def test_an_architecture_that_cannot_grow_is_refused(
    make_table: Callable[..., OutcomeTable], change: dict[str, Any], reason: str
) -> None:
    table = make_table(lambda _: 0.5, decisions=2)
    (point,) = table.architecture.growth_points
    times = 2 if change.pop("twice", False) else 1
    insertion = tuple(layer.model_copy(update=change) for layer in point.insertion) * times
    wrong = table.architecture.model_copy(
        update={"growth_points": (point.model_copy(update={"insertion": insertion}),)}
    )
    with pytest.raises(TableError, match=f"table chain-middle: its architecture cannot grow at 'layer0' .*{reason}"):
        decision_tree(table.model_copy(update={"architecture": wrong}))
    with pytest.raises(TableError, match=f"table chain-middle: its architecture cannot grow at 'layer0' .*{reason}"):
        OutcomeEnvironment([make_table(lambda _: 0.5).model_copy(update={"architecture": wrong})])
