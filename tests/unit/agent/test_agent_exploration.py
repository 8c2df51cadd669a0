"""A service that explores: what is drawn, with which probability, and that it is kept as it was."""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from bodies import ask
from click.testing import CliRunner
from jobs_world import PATIENCE, outcome, storing
from pydantic import ValidationError

from espalier_agent.commands.agent import agent
from espalier_agent.data import named_architecture
from espalier_agent.history import decisions
from espalier_agent.history.schema import VERSION, DamagedError, DecisionRecord, ShadowRecord
from espalier_agent.policies.advice import Exploration, PolicyDecision, decide, explored
from espalier_agent.policies.policy import Policy
from espalier_agent.service.app import create_app
from espalier_agent.service.serving import ServiceSettings
from espalier_core.types.advice import Action, ActionProbability, AdviceResponse

ACTIONS = (Action.deepen("a"), Action.deepen("b"), Action.deepen("c"), Action.nothing())
GREEDY = PolicyDecision(
    action=ACTIONS[1],
    probabilities=tuple(
        ActionProbability(action=action, probability=probability)
        for action, probability in zip(ACTIONS, (0.0, 0.9, 0.1, 0.0), strict=True)
    ),
    unknown_layers=0,
)
REQUEST = ask(named_architecture("cnn1"), 200.0, time_budget_seconds=400.0)
VERSION_1 = """CREATE TABLE decisions (
        decision_id TEXT PRIMARY KEY, time TEXT NOT NULL, job TEXT NOT NULL,
        architecture TEXT NOT NULL REFERENCES architectures (digest),
        time_left_seconds REAL NOT NULL, time_budget_seconds REAL NOT NULL,
        allocation TEXT NOT NULL, progress TEXT NOT NULL,
        actions TEXT NOT NULL, probabilities TEXT NOT NULL, action TEXT NOT NULL, greedy INTEGER NOT NULL,
        policy_name TEXT NOT NULL, policy_version TEXT NOT NULL)"""


@pytest.mark.parametrize("share", [0.25, 1.0])
def test_actions_come_as_often_as_their_probabilities_say(share: float) -> None:
    drawn = [explored(GREEDY, Exploration(share=share, seed=3), f"decision {number}") for number in range(8000)]
    said = {decision.action: decision.behaviour_probability for decision in drawn}
    assert said == {
        action: pytest.approx(share / 4 + (1 - share if action == GREEDY.action else 0.0)) for action in ACTIONS
    }
    assert sum(said.values()) == pytest.approx(1.0)
    found = Counter(decision.action for decision in drawn)
    for action, probability in said.items():
        # Five standard deviations of a share of 8000.
        assert abs(found[action] / 8000 - probability) < 5 * (probability * (1 - probability) / 8000) ** 0.5
    assert all(decision.probabilities == GREEDY.probabilities for decision in drawn)


def test_without_exploration_or_a_choice_the_best_is_certain() -> None:
    assert explored(GREEDY, Exploration(), "d") is GREEDY
    assert GREEDY.behaviour_probability == 1.0
    alone = PolicyDecision(Action.nothing(), (ActionProbability(action=Action.nothing(), probability=1.0),), 0)
    assert explored(alone, Exploration(share=0.3), "d") == alone


def test_a_decision_id_and_a_seed_determine_what_is_drawn() -> None:
    def drawn(seed: int) -> list[PolicyDecision]:
        return [explored(GREEDY, Exploration(share=0.5, seed=seed), f"decision {number}") for number in range(50)]

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_a_share_is_between_0_and_1(share: float) -> None:
    with pytest.raises(ValidationError, match="share"):
        Exploration(share=share)


def test_serve_refuses_a_share_that_is_none() -> None:
    result = CliRunner().invoke(agent, ["serve", "--explore", "2"])
    assert result.exit_code == 2
    assert "--explore" in result.stderr


def test_the_service_keeps_what_it_drew(call: Any, policy: Policy, tmp_path: Path) -> None:
    path = tmp_path / "outcomes.db"
    settings = ServiceSettings(outcomes_path=path, exploration=Exploration(share=0.5, seed=9))
    asked = [("POST", "/v1/advice", {"json": REQUEST.to_json()})] * 60
    *responses, described = call(create_app(settings, policy), [*asked, ("GET", "/v1/policy", {})])
    answers = [AdviceResponse.model_validate(response.json()) for response in responses]
    assert described.json()["exploration"] == 0.5
    greedy = decide(policy, REQUEST)
    kept = {decision.decision_id: decision for decision in decisions(path)}
    assert len(kept) == 60
    for answer in answers:
        expected = explored(greedy, settings.exploration, answer.decision_id)
        decision = kept[answer.decision_id]
        assert decision.action == answer.action == expected.action
        assert decision.behaviour_probability == expected.behaviour_probability
        assert decision.greedy == (answer.action == greedy.action)
    assert len({answer.action for answer in answers}) == 4


def old_file(path: Path, policy: Policy) -> list[float]:
    """Write a file as version 1 did, with greedy decisions and one that was drawn; return their probabilities."""
    greedy = decide(policy, REQUEST)
    drawn = decide(policy, REQUEST, sample_seed=0)
    drawn = replace(drawn, action=greedy.probabilities[0].action)
    with storing(path) as store:
        for name, decision in (("a", greedy), ("b", drawn), ("c", greedy)):
            store.keep(DecisionRecord(name, datetime.now(UTC), REQUEST, decision, policy.identity), 1)
        store.report(outcome("a")).result(PATIENCE)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("ALTER TABLE decisions RENAME TO newer")
        connection.execute(VERSION_1)
        columns = [row[1] for row in connection.execute("PRAGMA table_info(decisions)")]
        connection.execute(f"INSERT INTO decisions SELECT {', '.join(columns)} FROM newer")
        connection.execute("DROP TABLE newer")
        connection.execute("DROP TABLE trials")
        connection.execute("UPDATE decisions SET greedy = 0 WHERE decision_id = 'b'")
        connection.execute("PRAGMA user_version = 1")
        connection.commit()
    return [1.0, greedy.probabilities[0].probability, 1.0]


def test_a_file_of_version_1_is_read_as_it_is(tmp_path: Path, policy: Policy) -> None:
    path = tmp_path / "outcomes.db"
    expected = old_file(path, policy)
    content = path.read_bytes()
    assert [decision.behaviour_probability for decision in decisions(path)] == expected
    assert path.read_bytes() == content


def test_a_file_of_version_1_is_brought_up_to_date_by_whoever_writes(tmp_path: Path, policy: Policy) -> None:
    path = tmp_path / "outcomes.db"
    expected = old_file(path, policy)
    drawn = explored(decide(policy, REQUEST), Exploration(share=0.5), "d")
    with storing(path) as store:
        store.keep(DecisionRecord("d", datetime.now(UTC), REQUEST, drawn, policy.identity), 1)
        store.report(outcome("d", accuracy=0.6)).result(PATIENCE)
    found = list(decisions(path))
    assert [decision.behaviour_probability for decision in found] == [*expected, drawn.behaviour_probability]
    assert [decision.final_accuracy for decision in found] == [0.5, None, None, 0.6]
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (VERSION,)


def test_an_update_that_breaks_off_leaves_the_file_as_it_was(
    tmp_path: Path, policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "outcomes.db"
    expected = old_file(path, policy)
    with monkeypatch.context() as broken:
        broken.setattr(
            "espalier_agent.history.schema.UPDATES",
            {1: ("ALTER TABLE decisions ADD COLUMN behaviour_probability REAL NOT NULL DEFAULT 1.0", "UPDATE nothing")},
        )
        with storing(path) as store:
            assert store.report(outcome("b", accuracy=0.6)).exception(PATIENCE) is not None
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (1,)
    assert [decision.behaviour_probability for decision in decisions(path)] == expected


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("UPDATE decisions SET behaviour_probability = 0", r"decision a cannot be read \(behaviour_probability 0"),
        ("UPDATE decisions SET behaviour_probability = 1.5", r"behaviour_probability 1\.5 is not above 0"),
        ("UPDATE decisions SET probabilities = '[NaN,0,0,1]'", "not one between 0 and 1 for each action"),
        ("UPDATE decisions SET probabilities = '[1]'", "not one between 0 and 1 for each action"),
        ("""UPDATE decisions SET action = '{"kind":"Deepen","target":"zzz"}'""", "not among those that were possible"),
        ("UPDATE decisions SET time_left_seconds = 9e999", "time_left_seconds inf"),
        ("UPDATE decisions SET time_left_seconds = 'soon'", "decision a cannot be read"),
        ("UPDATE decisions SET behaviour_probability = 'high'", "decision a cannot be read"),
        ("UPDATE decisions SET probabilities = '5'", "decision a cannot be read"),
        (f"UPDATE decisions SET actions = '{'[' * 100_000}'", "decision a cannot be read"),
        ("UPDATE decisions SET batch_size = 'abc'", "decision a cannot be read"),
        ("UPDATE decisions SET batch_size = -5", "decision a cannot be read"),
        ("UPDATE decisions SET places = '3'", "decision a cannot be read"),
        ("""UPDATE decisions SET places = '{"x":{"y":1}}'""", "decision a cannot be read"),
        ("UPDATE decisions SET time_left_seconds = 1e12", "decision a cannot be read"),
        ("UPDATE decisions SET job = 'two' || char(10) || 'lines'", r"\); move the file away$"),
        ("UPDATE shadows SET action = '{}'", "shadow of decision a cannot be read"),
        ("UPDATE shadows SET policy_name = x'ff'", "shadow of decision a cannot be read"),
        ("UPDATE shadows SET probabilities = 'none'", "shadow of decision a cannot be read"),
        ("UPDATE shadows SET probabilities = '[2,0,0,0]'", r"shadow of decision a cannot be read \(probabilities \[2"),
        ("UPDATE outcomes SET time = x'00'", r"outcome a: time b'\\x00' is not text"),
        ("UPDATE outcomes SET final_accuracy = 1.2", r"final_accuracy 1\.2 is not between 0 and 1"),
        ("UPDATE outcomes SET final_accuracy = 'good'", "final_accuracy 'good' is not between 0 and 1"),
    ],
)
def test_figures_that_cannot_be_are_named(tmp_path: Path, policy: Policy, statement: str, message: str) -> None:
    path = tmp_path / "outcomes.db"
    old_file(path, policy)
    shadow = ShadowRecord("a", datetime.now(UTC), decide(policy, REQUEST), policy.identity, agreed=True)
    with storing(path) as store:
        store.keep(shadow, 1)
        store.report(outcome("a")).result(PATIENCE)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute(statement).rowcount > 0
        connection.commit()
    with pytest.raises(DamagedError, match=message) as refused:
        list(decisions(path))
    assert str(path) in str(refused.value)


def test_a_probability_is_exact() -> None:
    """Not estimated: the two ways to come to the best action, added."""
    decision = next(
        drawn
        for number in range(100)
        if (drawn := explored(GREEDY, Exploration(share=0.5), f"{number}")).action == GREEDY.action
    )
    assert Fraction(decision.behaviour_probability) == Fraction(5, 8)
