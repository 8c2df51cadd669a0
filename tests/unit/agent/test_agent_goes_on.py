"""The whole round with a real service: it explores, its jobs end, a policy is learnt from that and put to work."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner, Result
from jobs_world import accuracy, play, poor, request

from agent_service import serving
from espalier_agent.commands.agent import agent
from espalier_agent.data import carried_tables
from espalier_agent.history import decisions
from espalier_agent.policies.policy import load_policy, save_policy
from espalier_agent.tables.tree import DecisionTree, decision_tree
from espalier_core.types.advice import Action, AdviceResponse, OutcomeReport
from waiting import PATIENCE, until

JOBS = 150
"""Enough that of those held out (a quarter) a dozen decisions are, by chance, what the new policy would do."""


def run(*arguments: object, exits: int = 0) -> Result:
    ended = CliRunner().invoke(agent, [str(argument) for argument in arguments])
    assert ended.exit_code == exits, ended.output
    return ended


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """Serve a poor policy, exploring; give the URL."""
    save_policy(poor(carried_tables("digits")[0], 0.1), tmp_path / "served")
    with serving(tmp_path, "--explore", "0.6") as announced:
        yield announced


def run_job(client: httpx.Client, tree: DecisionTree, job: str) -> None:
    """Ask, do as told, and report the end, as a trainer does."""
    ids: list[str] = []

    def answer(_number: int, state: int) -> Action:
        response = client.post("/v1/advice", json=request(tree, state, job).to_json())
        advice = AdviceResponse.model_validate(response.json())
        ids.append(advice.decision_id)
        return advice.action

    reached = play(tree, answer)
    report = OutcomeReport(
        job=job,
        decision_ids=tuple(ids),
        final_accuracy=reached,
        time_budget_seconds=tree.states[0].time_budget_s,
    )
    client.post("/v1/outcomes", json=report.to_json()).raise_for_status()


# Some fifteen seconds of one core: on a machine that is shared by many, minutes.
@pytest.mark.timeout(900)
@pytest.mark.slow
def test_a_service_gets_better_by_what_it_tried(url: str, tmp_path: Path) -> None:
    table = carried_tables("digits")[0]
    tree = decision_tree(table)
    served, kept = tmp_path / "served", tmp_path / "kept"
    before = load_policy(served)
    with httpx.Client(base_url=url, timeout=PATIENCE) as client:
        assert client.get("/v1/policy").json()["exploration"] == 0.6
        with ThreadPoolExecutor(4) as trainers:
            list(trainers.map(lambda number: run_job(client, tree, f"job-{number}"), range(JOBS)))
        history = list(decisions(kept))
        assert len(history) == JOBS * tree.decisions
        assert {round(decision.behaviour_probability, 9) for decision in history} == {0.15, 0.55}
        fields = ["--set", "updates=40", "--set", "learning_rate=.005"]
        run(
            "learn", "--without-tables", "--from-history", kept, "--from", served, *fields, "--output", tmp_path / "new"
        )
        sources = ["--from-history", kept, "--least-effective", 3]
        judged = run("promote", "--policy", tmp_path / "new", "--to", served, *sources, "--json")
        assert json.loads(judged.stdout)["history"]["difference"] > 0
        after = load_policy(tmp_path / "new")

        def shown_new() -> Any:
            shown = client.get("/v1/policy").json()
            return shown if shown["policy"]["version"] == after.version else None

        shown = until(shown_new, "the service notices the new policy")
        assert shown["lineage"]["parent"] == {"name": before.name, "version": before.version}
        assert shown["lineage"]["history"]["episodes"] + shown["lineage"]["history"]["heldOutEpisodes"] == JOBS
        assert accuracy(after, tree) >= accuracy(before, tree) + 0.05
        save_policy(before, tmp_path / "worse")
        refused = run("promote", "--policy", tmp_path / "worse", "--to", served, *sources, exits=3)
        assert "refused: worse by" in refused.stderr
        assert client.get("/v1/policy").json()["policy"]["version"] == after.version
