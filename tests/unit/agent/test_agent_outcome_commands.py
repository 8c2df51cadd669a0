"""`espalier agent outcomes`: what is counted and printed of a real database, and how a wrong one is refused."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from espalier_agent.commands.agent import agent
from espalier_agent.data import named_architecture
from espalier_agent.history.schema import DecisionRecord, ShadowRecord
from espalier_agent.history.store import OutcomeStore
from espalier_agent.policies.advice import PolicyDecision
from espalier_core.types.advice import Action, ActionProbability, AdviceRequest, OutcomeReport, PolicyVersion

PATIENCE = 30.0
OLD, NEW = PolicyVersion(name="mine", version="1"), PolicyVersion(name="mine", version="2")
DEEPEN, NOTHING = Action.deepen("block0"), Action.nothing()


def decided(action: Action) -> PolicyDecision:
    probabilities = tuple(
        ActionProbability(action=each, probability=0.75 if each == action else 0.25) for each in (DEEPEN, NOTHING)
    )
    return PolicyDecision(action=action, probabilities=probabilities, unknown_layers=0)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """Return a database with three decisions of one version, two of them reported and shadowed, and one of another."""
    path = tmp_path / "outcomes.db"
    request = AdviceRequest(
        job="job",
        architecture=named_architecture("cnn1"),
        time_left_seconds=5,
        time_budget_seconds=9,
        allowed_actions=(DEEPEN,),
    )
    store = OutcomeStore(path)
    store.start()
    now = datetime.now(UTC)
    for name, action, policy in (("a", DEEPEN, OLD), ("b", NOTHING, OLD), ("c", DEEPEN, OLD), ("d", NOTHING, NEW)):
        store.keep(DecisionRecord(name, now, request, decided(action), policy), 1)
    for name, action, agreed in (("a", DEEPEN, True), ("b", DEEPEN, False)):
        store.keep(ShadowRecord(name, now, decided(action), NEW, agreed), 1)
    for name, accuracy in (("a", 0.5), ("b", 0.8)):
        report = OutcomeReport(job="job", decision_ids=(name,), final_accuracy=accuracy, time_budget_seconds=9)
        store.report(report).result(PATIENCE)
    store.close(PATIENCE)
    return path


def test_decisions_are_counted_by_policy_and_version(database: Path) -> None:
    result = CliRunner().invoke(agent, ["outcomes", "--db", str(database), "--json"])
    assert result.exit_code == 0
    assert json.loads(result.stdout) == {
        "policies": [
            {
                "policy": "mine",
                "version": "1",
                "decisions": 3,
                "deepened": 2,
                "widened": 0,
                "extended": 0,
                "outcomes": 2,
                "meanAccuracy": pytest.approx(0.65),
                "shadowed": 2,
                "agreement": 0.5,
            },
            {
                "policy": "mine",
                "version": "2",
                "decisions": 1,
                "deepened": 0,
                "widened": 0,
                "extended": 0,
                "outcomes": 0,
                "meanAccuracy": None,
                "shadowed": 0,
                "agreement": None,
            },
        ]
    }


def test_people_get_a_table(database: Path) -> None:
    result = CliRunner().invoke(agent, ["outcomes", "--db", str(database.parent)])
    assert [line.split() for line in result.stdout.splitlines()] == [
        ["policy", "decisions", "deepened", "widened", "extended", "outcomes", "accuracy", "agreement"],
        ["mine@1", "3", "2", "0", "0", "2", "0.6500", "0.5000"],
        ["mine@2", "1", "0", "0", "0", "0", "-", "-"],
    ]


def test_what_is_no_database_is_refused_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("text" * 1000)
    for source, message in ((tmp_path / "text.db", "file is not a database"), (tmp_path / "none", "no such file")):
        result = CliRunner().invoke(agent, ["outcomes", "--db", str(source)])
        assert result.exit_code == 2
        assert result.stderr.startswith(f"error: {source}: ")
        assert message in result.stderr


def test_the_old_option_names_the_new_one() -> None:
    result = CliRunner().invoke(agent, ["serve", "--outcomes-file", "x.jsonl"])
    assert result.exit_code == 2
    assert "use --outcomes-db FILE" in result.stderr
