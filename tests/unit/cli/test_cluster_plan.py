"""`espalier plan`: every action and every refusal in a sentence; damaged files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from cluster_objects import NOW, SETTINGS, acted, admitted, gpus, job, lists, node, report, worker
from ruamel.yaml import YAML

from espalier_cli.cluster.decisions import described_share, rows_of, says, share_rows
from espalier_cli.main import cli
from espalier_core.types.reasons import SENTENCES, Reason
from espalier_lab.scheduling.learned.files import Serves
from espalier_operator.kube.snapshot import seen_by_operator
from espalier_operator.model import Snapshot
from espalier_operator.model.actions import (
    Admit,
    Fail,
    Finish,
    GrantExtra,
    NoticeReclaim,
    Plan,
    Refusal,
    ReleaseExtra,
    Requeue,
    Stop,
)
from espalier_operator.planner import plan
from espalier_operator.policies.fair import FairPolicy
from espalier_operator.policies.learned import LearnedPolicy
from espalier_operator.policies.view import Share
from policy_files import write_giving


@pytest.mark.parametrize(
    ("action", "words"),
    [
        (Admit(job="a", gpu_type="x"), "starts on its base GPUs of type x"),
        (Admit(job="a", gpu_type=""), "starts on its base GPUs"),
        (GrantExtra(job="a", extra=2), "is lent GPUs, 2 extra workers in all"),
        (
            NoticeReclaim(job="a", extra=0, deadline=NOW + 30, reason=Reason.NEEDED_BY_OTHER_JOB),
            "is asked to be down to no extra workers within 30 s",
        ),
        (
            ReleaseExtra(job="a", extra=1, forced=True, reason=Reason.RECLAIM_FORCED),
            "is taken GPUs by force, 1 extra worker left",
        ),
        (
            ReleaseExtra(job="a", extra=0, forced=False, reason=Reason.RECLAIM_ACKNOWLEDGED),
            "gives GPUs back, no extra workers left",
        ),
        (Stop(job="a", deadline=NOW + 5, reason=Reason.SUSPENDED), "is asked to checkpoint and end within 5 s"),
        (Requeue(job="a", reason=Reason.GPU_LOST), "waits again, its budget kept"),
        (Finish(job="a", reason=Reason.BUDGET_ENFORCED), "ends as complete"),
        (Fail(job="a", reason=Reason.CRASH_LOOP, message="4 failures"), "ends as failed"),
    ],
)
def test_every_action_has_words_and_its_reason_a_sentence(action: Any, words: str) -> None:
    assert says(action, NOW) == words
    (row,) = rows_of(Plan(actions=(action,), refusals={}, wake_at=None), NOW)
    assert list(row[:3]) == ["a", words, str(action.reason)]
    assert row[3].startswith(SENTENCES[action.reason])
    assert ("4 failures" in row[3]) == isinstance(action, Fail)


@pytest.mark.parametrize("reason", Reason)
def test_every_refusal_has_a_sentence(reason: Reason) -> None:
    refused = Plan(actions=(), refusals={"a": Refusal(job="a", reason=reason)}, wake_at=None)
    assert rows_of(refused, NOW) == [["a", "gets nothing (more)", str(reason), SENTENCES[reason]]]


def snapshot_of_a_wait() -> Snapshot:
    holder = admitted(job("holder", maxReplicas=2), at=NOW - 20)
    pods = [worker(holder, "n", age=15)]
    return seen_by_operator(
        lists(
            jobs=[holder, job("waits", minReplicas=2), job("giant", template=gpus(9))],
            pods=pods,
            nodes=[node("n", 2)],
            reports=[report(holder, pods[0])],
        ),
        NOW,
        SETTINGS,
    ).snapshot


def test_plan_prints_what_plan_says(tmp_path: Path) -> None:
    snapshot = snapshot_of_a_wait()
    path = tmp_path / "snapshot.json"
    path.write_text(snapshot.to_json())
    made = plan(snapshot, FairPolicy(), NOW)
    outcome = CliRunner().invoke(cli, ["plan", "--snapshot", str(path), "-o", "json"])
    assert outcome.exit_code == 0
    told = json.loads(outcome.stdout)
    assert [(entry["action"], entry["job"]) for entry in told["actions"]] == [
        (type(action).__name__, action.job) for action in made.actions
    ]
    assert {entry["job"]: entry["reason"] for entry in told["refusals"]} == {
        key: str(refusal.reason) for key, refusal in made.refusals.items()
    }
    assert told["refusals"][0] == {
        "job": "default/giant",
        "reason": "TooLarge",
        "why": "it requests more GPUs than there are in total; lower minReplicas or add GPUs",
        "startsBy": None,
    }
    assert told["refusals"][-1]["job"] == "default/waits"
    assert told["refusals"][-1]["startsBy"] == made.refusals["default/waits"].starts_by > NOW
    assert told["wakeAt"] == made.wake_at
    assert (told["policy"], told["ignored"]) == ("fair", [])
    assert [(share["place"], share["job"], share["workers"], share["spare"]) for share in told["shares"]] == [
        (place, share.job, share.workers, share.spare) for place, share in enumerate(made.shares, 1)
    ]
    table = CliRunner().invoke(cli, ["plan", "--snapshot", "-"], input=snapshot.to_json())
    assert table.exit_code == 0
    lines = table.stdout.splitlines()
    assert lines[0].split() == ["JOB", "DECISION", "REASON", "WHY"]
    assert any(line.split()[:5] == ["default/giant", "gets", "nothing", "(more)", "TooLarge"] for line in lines)
    (waits,) = (line for line in lines if line.startswith("default/waits"))
    assert "waits, and starts in" in waits
    at = lines.index("Policy fair serves by priority, recent use and age:")
    assert lines[at + 2].split() == ["PLACE", "JOB", "WORKERS", "SPARE", "GPU", "TYPE", "NODES"]
    assert [line.split()[1] for line in lines[at + 3 : at + 6]] == [share.job for share in made.shares]
    yaml = CliRunner().invoke(cli, ["plan", "--snapshot", str(path), "-o", "yaml"])
    assert YAML(typ="safe").load(yaml.stdout) == told


def test_plan_says_when_time_alone_changes_it_and_what_then(tmp_path: Path) -> None:
    holder = acted(admitted(job("a", maxReplicas=2)), changed_at=NOW - 50)
    pods = [worker(holder, "n")]
    snapshot = seen_by_operator(
        lists(jobs=[holder], pods=pods, nodes=[node("n", 2)], reports=[report(holder, pods[0])]), NOW, SETTINGS
    ).snapshot
    path = tmp_path / "snapshot.json"
    path.write_text(snapshot.to_json())
    now = CliRunner().invoke(cli, ["plan", "--snapshot", str(path)]).stdout
    assert "Cooldown" in now
    assert "Time alone may change this plan in 10 s, at 2026-01-01 12:00:10 UTC." in now
    later = CliRunner().invoke(cli, ["plan", "--snapshot", str(path), "--after", "10"]).stdout
    assert "is lent GPUs, 1 extra worker in all" in later


def damaged(old: str, new: str) -> str:
    return snapshot_of_a_wait().to_json().replace(old, new)


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (None, "cannot be read: No such file"),
        (b"\xff\xfe{", "not UTF-8"),
        ("", "not complete JSON"),
        ("[" * 100_000, "not complete JSON"),
        (damaged('"allocatable": 2', '"allocatable": "two"'), "nodes.0.allocatable"),
        (damaged('"extra": 0', '"extra": 1000000000000'), "must be from 0 to 10,000"),
        (damaged('"allocatable": 2', f'"allocatable": {10**400}'), "nodes.0.allocatable"),
        (damaged('"cpu": 8000', '"cpu": -1'), "nodes.0.resources.cpu: is -1; must be"),
        (damaged('["pods", 1]', f'["pods", {10**400}]'), "jobs.0.terms.constraints.requests.pods"),
        (damaged(f'"taken_at": {NOW}', '"taken_at": NaN'), "taken_at: "),
        (damaged('"gpu_seconds_budget": null', '"gpu_seconds_budget": Infinity'), "jobs.0.terms.gpu_seconds_budget: "),
        (damaged('"default/giant"', '"default/waits"'), "jobs.key: 'default/waits' is there 2 times; must be unique"),
        (
            damaged('"nodes": [{', '"nodes": [{"name": "n", "gpu_type": "", "allocatable": 1}, {'),
            "nodes.name: 'n' is there 2 times; must be unique",
        ),
    ],
)
def test_a_snapshot_that_cannot_be_used_is_one_line_and_a_hint(
    tmp_path: Path, content: str | bytes | None, cause: str
) -> None:
    path = tmp_path / "snapshot.json"
    if content is not None:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    outcome = CliRunner().invoke(cli, ["plan", "--snapshot", str(path)])
    assert outcome.exit_code == 2
    error, hint = outcome.stderr.splitlines()
    assert error.startswith(f"error: {path}: ")
    assert cause in error
    assert hint.startswith("hint: ")


def test_a_plan_starts_with_no_memory_where_the_policy_cannot_use_it() -> None:
    seen = lists(jobs=[job("a")], nodes=[node("n", 2)])
    snapshot = seen_by_operator(seen, NOW, SETTINGS).snapshot
    damaged = replace(snapshot, policy_memory={"queues": 7}, rules=replace(snapshot.rules, policy="las"))
    outcome = CliRunner().invoke(cli, ["plan", "--snapshot", "-"], input=damaged.to_json())
    assert outcome.exit_code == 0, outcome.output
    (line,) = outcome.stderr.splitlines()
    assert line.startswith("stdin: policy las cannot use policy_memory and starts with none (")


def test_a_plan_that_time_changes_in_no_year_of_the_calendar_is_printed(tmp_path: Path) -> None:
    holder = admitted(job("a"))
    pods = [worker(holder, "n")]
    seen = lists(jobs=[holder], pods=pods, nodes=[node("n", 2)], reports=[report(holder, pods[0])])
    text = seen_by_operator(seen, NOW, SETTINGS).snapshot.to_json()
    damaged = text.replace('"time_budget_seconds": 400.0', '"time_budget_seconds": 1e300')
    damaged = damaged.replace('"budget_end_seconds": 400.0', '"budget_end_seconds": null')
    outcome = CliRunner().invoke(cli, ["plan", "--snapshot", "-"], input=damaged)
    assert outcome.exit_code == 0, outcome.output
    assert outcome.stdout.splitlines()[-1].startswith("Time alone may change this plan in ")
    assert outcome.stdout.endswith(" h.\n")


def test_a_snapshot_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "snapshot.json"
    path.write_text(Snapshot(taken_at=NOW).to_json(), encoding="utf-8-sig")
    assert CliRunner().invoke(cli, ["plan", "--snapshot", str(path)]).exit_code == 0


def test_a_plan_of_nothing_says_so() -> None:
    outcome = CliRunner().invoke(cli, ["plan", "--snapshot", "-"], input=Snapshot(taken_at=NOW).to_json())
    assert outcome.stdout == (
        "There is nothing to decide: all jobs are finished.\nTime alone does not change this plan.\n"
    )


def test_a_share_is_reported_with_its_type_its_nodes_and_what_was_ignored() -> None:
    """As `espalier explain` says it."""
    policy = FairPolicy()
    shares = (Share(job="a", workers=3, spare=1, gpu_type="a100", nodes=("n", "n", "m")), Share(job="b", workers=0))
    made = Plan(actions=(), refusals={}, wake_at=None, shares=shares, ignored=("b: its weight cannot be 0",))
    first, second = described_share("a", made, policy, "own:k=1")
    assert first == "Policy own:k=1 serves it as number 1 of 2, by priority, recent use and age."
    assert second == (
        "Its share is 3 workers, and 1 spare one as long as nobody needs it of type a100; wished on n (2) and m."
    )
    assert described_share("b", made, policy, "own")[1:] == [
        "Its share is none: it is to wait.",
        "Of its share was ignored: its weight cannot be 0.",
    ]
    assert described_share("c", made, policy, "own") == [
        "Policy own gives it no share: it keeps what it holds, and waits for more."
    ]
    assert share_rows(made)[0] == ["1", "a", "3", "1", "a100", "n (2) and m"]


def test_a_policy_without_an_answer_of_its_file_says_who_decides(tmp_path: Path) -> None:
    """As `espalier plan` and `espalier explain` say it."""
    path = tmp_path / "snapshot.json"
    path.write_text(snapshot_of_a_wait().to_json())
    why = "its policy file was not asked about this moment"
    table = CliRunner().invoke(cli, ["plan", "--snapshot", str(path), "--policy", "learned"])
    assert f"Policy learned does not decide: {why}. fair does:" in table.stdout
    done = CliRunner().invoke(cli, ["plan", "--snapshot", str(path), "--policy", "learned", "-o", "json"])
    assert json.loads(done.stdout)["fallback"] == why
    made = Plan(actions=(), refusals={}, wake_at=None, shares=(Share(job="a", workers=1),), fallback=why)
    unknown, served, _ = described_share("a", made, LearnedPolicy(), "learned:wait=0.4")
    assert unknown.startswith("What policy learned:wait=0.4 decides is not known here: ")
    late = replace(made, fallback="its policy file did not answer within 0.4 s")
    assert described_share("a", late, LearnedPolicy(), "learned:wait=0.4")[:2] == [
        "Policy learned:wait=0.4 does not decide: its policy file did not answer within 0.4 s. "
        "fair decides about all jobs until it does.",
        "Policy fair serves it as number 1 of 1, by priority, recent use and age.",
    ]
    assert served == "Policy fair serves it as number 1 of 1, by priority, recent use and age."


def test_a_policy_file_decides_on_a_snapshot_instead_of_what_the_operator_remembers(tmp_path: Path) -> None:
    path, file = tmp_path / "snapshot.json", write_giving(tmp_path / "tiny.safetensors")
    snapshot = snapshot_of_a_wait()
    path.write_text(replace(snapshot, policy_memory={"learned": {"why": "it was away", "again_at": 1e12}}).to_json())
    done = CliRunner().invoke(cli, ["plan", "--snapshot", str(path), "--policy", f"learned:file={file}", "-o", "json"])
    found = json.loads(done.stdout)
    assert found["fallback"] is None
    assert {share["job"] for share in found["shares"]} == {job.key for job in snapshot.jobs}
    write_giving(file, serves=Serves(min_gpus=100, max_gpus=200, max_jobs=1))
    refused = CliRunner().invoke(cli, ["plan", "--snapshot", str(path), "--policy", f"learned:file={file}"])
    assert refused.exit_code == 2
    assert "and the policy serves 100 to 200" in refused.output
