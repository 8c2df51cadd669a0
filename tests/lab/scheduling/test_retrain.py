"""`espalier policies retrain`: from an audit log to a policy file that `learned` decides by."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from espalier_cli.main import cli
from espalier_core.estimates.goodput import StepTime
from espalier_core.types.reasons import Reason
from espalier_lab.scheduling.learned.files import read_policy
from espalier_operator.model import JobFacts, JobTerms, Node, Snapshot
from espalier_operator.model.actions import DECISIONS, Admit, Finish

SPEEDS = tuple(
    StepTime(nodes=1, workers=workers, batch_size=64 // workers, step_seconds=0.2 + 0.8 / workers, sync_seconds=0.0)
    for workers in (1, 2)
)


def audit_log(folder: Path, count: int, *, elastic: bool = True) -> Path:
    """Write a log of jobs that run one after the other for 300 s."""
    folder.mkdir()
    lines = []
    for index in range(count):
        terms = JobTerms(min_replicas=1, max_replicas=4, time_budget_seconds=300.0, trains_together=elastic)
        begin = 100.0 * index
        facts = JobFacts(key=f"ns/j{index}", terms=terms, submitted_at=begin, speeds=SPEEDS)
        ended = JobFacts(
            key=f"ns/j{index}", terms=terms, submitted_at=begin, speeds=SPEEDS, admitted_at=begin, used_seconds=300.0
        )
        for at, job, action in (
            (begin, facts, {"action": Admit.__name__, "job": facts.key}),
            (begin + 300.0, ended, {"action": Finish.__name__, "job": facts.key, "reason": Reason.COMPLETED}),
        ):
            nodes = (Node(name="n", gpu_type="a", allocatable=4),)
            name = f"{index:03}-{action['action']}.json"
            (folder / name).write_text(Snapshot(taken_at=at, nodes=nodes, jobs=(job,)).to_json())
            lines.append((at, json.dumps({"at": at, "snapshot": name, "actions": [action]})))
    (folder / DECISIONS).write_text("".join(f"{line}\n" for _, line in sorted(lines)))
    return folder


def test_a_history_becomes_a_file_that_decides(tmp_path: Path) -> None:
    folder, file = audit_log(tmp_path / "audit", 24), tmp_path / "own.safetensors"
    done = CliRunner().invoke(
        cli, ["policies", "retrain", str(folder), "--output", str(file), "--quick", "--episodes", "2", "--placement"]
    )
    assert done.exit_code == 0, done.output
    policy = read_policy(file)
    assert policy.placement
    assert policy.lineage.learnt_from == "24 jobs of an audit log, 24 of them elastic, on 4 GPUs"
    assert policy.lineage.decisions > 0
    assert policy.lineage.serves.refusal(4) is None
    assert policy.lineage.serves.refusal(9) is not None
    for word in ("own", "fair", "optimus", "goodput", f"policy own@{policy.version}"):
        assert word in done.stdout
    shadow = ["simulate", str(folder), "--format", "audit", "--shadow", f"learned:file={file}", "--json"]
    compared = CliRunner().invoke(cli, shadow)
    assert compared.exit_code == 0, compared.output
    assert json.loads(compared.stdout)["runs"][-1]["policy"] == f"learned:file={file}"


@pytest.mark.parametrize(
    ("count", "elastic", "output", "complaint"),
    [
        (19, True, "own.safetensors", "has 19 jobs; at least 20 are needed"),
        (20, False, "own.safetensors", "no job of the log gets faster with more workers"),
        (20, True, "own.pt", "must end with .safetensors"),
        (20, True, "nowhere/own.safetensors", "nowhere is not a folder"),
    ],
)
def test_what_cannot_be_learnt_from_is_reported(
    tmp_path: Path, count: int, elastic: bool, output: str, complaint: str
) -> None:
    folder = audit_log(tmp_path / "audit", count, elastic=elastic)
    done = CliRunner().invoke(cli, ["policies", "retrain", str(folder), "--output", str(tmp_path / output)])
    assert done.exit_code == 2
    assert complaint in done.output


@pytest.mark.parametrize(
    ("option", "value", "complaint"),
    [
        ("--seed", "-1", "-1 is not in the range 0<=x<=4294967295"),
        ("--seed", str(2**32), "4294967296 is not in the range 0<=x<=4294967295"),
        # With the name of a rule, the figures of that rule would be shown as those of the file.
        ("--name", "fair", "--name: fair is a rule that the file is compared with; choose another name"),
        ("--name", "", "--name: '' has 0 characters; give 1 to 100"),
        ("--name", "n" * 101, "has 101 characters; give 1 to 100"),
    ],
)
def test_an_option_that_cannot_be_is_reported_before_anything_is_learnt(
    tmp_path: Path, option: str, value: str, complaint: str
) -> None:
    arguments = ["policies", "retrain", str(tmp_path), "--output", str(tmp_path / "own.safetensors"), option, value]
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == 2
    assert complaint in done.output
