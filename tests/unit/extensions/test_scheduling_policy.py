"""A scheduling policy of a user's package: chosen by its name wherever one is chosen, and in no way special."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from espalier_cli.cluster.plan_command import plan as plan_command
from espalier_operator.kube.settings import settings_of, settings_options
from espalier_operator.model import JobFacts, JobTerms, Node, Rules, Snapshot
from espalier_operator.policies import POLICIES
from espalier_operator.policies.settings import configured

OWN = "youngest-first"
KNOWN = ", ".join(dict.fromkeys((*POLICIES.names(), OWN)))


def job(name: str, submitted_at: float) -> JobFacts:
    return JobFacts(
        key=name, terms=JobTerms(min_replicas=1, max_replicas=1, time_budget_seconds=60.0), submitted_at=submitted_at
    )


ONE_GPU = Snapshot(
    taken_at=10.0, nodes=(Node(name="n", gpu_type="", allocatable=1),), jobs=(job("old", 0.0), job("young", 5.0))
)


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    file = tmp_path / "snapshot.json"
    file.write_text(ONE_GPU.to_json(), encoding="utf-8")
    return file


def admitted(*arguments: str) -> list[str]:
    done = CliRunner().invoke(plan_command, [*arguments, "-o", "json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return [action["job"] for action in json.loads(done.stdout)["actions"]]


@pytest.mark.parametrize("name", sorted({*POLICIES.names()} - {"growth"}))  # the old name of another
def test_every_policy_is_called_as_it_is_registered(name: str) -> None:
    assert configured(name).name == name


def test_a_plan_is_made_by_the_policy_that_is_named(snapshot: Path) -> None:
    assert admitted("--snapshot", str(snapshot)) == ["old"]
    assert admitted("--snapshot", str(snapshot), "--policy", OWN) == ["young"]


def test_a_snapshot_is_replayed_by_the_policy_of_its_scheduler(snapshot: Path) -> None:
    snapshot.write_text(replace(ONE_GPU, rules=Rules(policy=OWN)).to_json(), encoding="utf-8")
    assert admitted("--snapshot", str(snapshot)) == ["young"]


def test_a_snapshot_of_a_policy_that_is_not_installed_is_refused(snapshot: Path) -> None:
    snapshot.write_text(replace(ONE_GPU, rules=Rules(policy="theirs")).to_json(), encoding="utf-8")
    refused = CliRunner().invoke(plan_command, ["--snapshot", str(snapshot)])
    assert refused.exit_code == 2
    assert f"rules.policy: unknown scheduling policy 'theirs'; known: {KNOWN}" in refused.output


def test_the_operator_takes_it_and_refuses_an_unknown_one() -> None:
    @click.command()
    @settings_options
    def command(**given: object) -> None:
        click.echo(settings_of(given).policy)

    assert CliRunner().invoke(command, ["--policy", OWN]).output == f"{OWN}\n"
    refused = CliRunner().invoke(command, ["--policy", "theirs"])
    assert refused.exit_code == 2
    assert f"unknown scheduling policy 'theirs'; known: {KNOWN}" in refused.output


def test_a_local_run_asks_for_a_known_policy() -> None:
    command = [Path(sys.executable).with_name("espalier"), "run", "examples/digits.yaml", "--policy", "theirs"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"unknown scheduling policy 'theirs'; known: {KNOWN}" in done.stderr
