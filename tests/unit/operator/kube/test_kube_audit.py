"""The audit log: what was decided can be decided again."""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from espalier_cli.main import cli
from espalier_operator.kube.audit import AuditLog
from espalier_operator.model import JobFacts, JobTerms, Node, Snapshot
from espalier_operator.model.actions import DECISIONS, EARLIER, Plan
from espalier_operator.planner import plan
from espalier_operator.policies import Policy
from espalier_operator.policies.fair import FairPolicy
from espalier_operator.policies.learned import FALLBACK, LearnedPolicy


def seen_at(time: float, jobs: int = 1) -> Snapshot:
    terms = JobTerms(min_replicas=1, max_replicas=1, time_budget_seconds=60.0)
    waiting = tuple(JobFacts(key=f"ns/{number}", terms=terms, submitted_at=0.0) for number in range(jobs))
    return Snapshot(taken_at=time, nodes=(Node(name="n", gpu_type="a", allocatable=1),), jobs=waiting)


def write(log: AuditLog, *snapshots: Snapshot, policy: Policy = FALLBACK) -> list[Plan]:
    """Write the plans of `snapshots` as a running operator does; return them."""
    plans = [plan(snapshot, policy, snapshot.taken_at) for snapshot in snapshots]

    async def run() -> None:
        writing = asyncio.create_task(log.run())
        for snapshot, planned in zip(snapshots, plans, strict=True):
            log.add(snapshot, planned)
            await log.written()
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)

    asyncio.run(run())
    return plans


def lines(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / DECISIONS).read_text().splitlines()]


def test_a_decision_is_made_again_from_its_snapshot(tmp_path: Path) -> None:
    snapshots = [seen_at(1_700_000_000.25, jobs=2), seen_at(1_700_000_001.5, jobs=0), seen_at(1_700_000_002.0)]
    write(AuditLog(tmp_path / "audit", 1 << 20), *snapshots)
    first, last = lines(tmp_path / "audit")
    assert first["at"] == 1_700_000_000.25
    assert first["snapshot"] == "20231114T221320.250000Z.json.gz"
    assert last["at"] == 1_700_000_002.0, "nothing was decided in between"
    assert first["fallback"] is None
    for line in (first, last):
        told = CliRunner().invoke(
            cli, ["plan", "--snapshot", str(tmp_path / "audit" / str(line["snapshot"])), "-o", "json"]
        )
        assert told.exit_code == 0, told.output
        again = json.loads(told.stdout)["actions"]
        assert [(entry["action"], entry["job"], entry["reason"]) for entry in again] == [
            (entry["action"], entry["job"], entry["reason"]) for entry in line["actions"]
        ]


def test_a_plan_that_another_policy_decided_says_why(tmp_path: Path) -> None:
    kept = {"learned": {"why": "its policy file did not answer within 0.5 s", "again_at": 1_700_000_005.0}}
    snapshot = replace(seen_at(1_700_000_000.0), policy_memory=kept)
    write(AuditLog(tmp_path / "audit", 1 << 20), snapshot, policy=LearnedPolicy())
    (line,) = lines(tmp_path / "audit")
    assert line["fallback"] == "its policy file did not answer within 0.5 s"


def test_a_file_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    write(AuditLog(tmp_path, 1 << 20), seen_at(0.0))
    (file,) = tmp_path.glob("*.json.gz")
    file.write_bytes(file.read_bytes()[:-9])
    told = CliRunner().invoke(cli, ["plan", "--snapshot", str(file)])
    assert told.exit_code == 2
    assert "is not complete gzip" in told.stderr


def test_the_oldest_go_when_there_is_no_room(tmp_path: Path) -> None:
    limit = 10_000
    for start in range(0, 100, 10):
        write(AuditLog(tmp_path, limit), *(seen_at(float(start + number), jobs=20) for number in range(10)))
    kept = sorted(file.name for file in tmp_path.glob("*.json.gz"))
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= limit
    assert kept, "some are there"
    assert kept[-1] == lines(tmp_path)[-1]["snapshot"]
    assert kept[0] > "19700101T000000.000000Z.json.gz"
    assert (tmp_path / EARLIER).exists()


def test_the_next_leader_keeps_to_the_limit_with_what_was_written_while_it_waited(tmp_path: Path) -> None:
    """All replicas may write to one claim; each starts before it leads."""
    limit = 10_000
    leader, standby = AuditLog(tmp_path, limit), AuditLog(tmp_path, limit)
    write(leader, *(seen_at(float(second), jobs=20) for second in range(60)))
    write(standby, *(seen_at(float(second), jobs=20) for second in range(60, 120)))
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= limit
    kept = sorted(file.name for file in tmp_path.glob("*.json.gz"))
    assert kept[0] > "19700101T000100.000000Z.json.gz", "those of the former leader went first"


def test_what_somebody_else_removed_is_no_trouble(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log, chunks = AuditLog(tmp_path, 10_000), [range(start, start + 10) for start in range(0, 100, 10)]

    def remove() -> None:
        for file in tmp_path.glob("*.json.gz"):
            file.unlink()

    async def story() -> None:
        writing = asyncio.create_task(log.run())
        for chunk in chunks:
            for seen in (seen_at(float(second), jobs=20) for second in chunk):
                log.add(seen, plan(seen, FALLBACK, seen.taken_at))
            await log.written()
            if chunk is chunks[0]:
                remove()
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)

    asyncio.run(story())
    assert not caplog.records
    assert lines(tmp_path)[-1]["at"] == 99.0
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 10_000


def test_what_cannot_be_written_is_reported_and_the_next_is_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = AuditLog(tmp_path / "audit", 1 << 20)
    (tmp_path / "audit").rename(tmp_path / "gone")
    with caplog.at_level(logging.ERROR):
        write(log, seen_at(1.0))
    assert "the audit log lacks the plan of 19700101T000001.000000Z" in caplog.text
    (tmp_path / "gone").rename(tmp_path / "audit")
    write(AuditLog(tmp_path / "audit", 1 << 20), seen_at(2.0))
    assert [line["at"] for line in lines(tmp_path / "audit")] == [2.0]


def test_a_disk_that_is_too_slow_costs_entries_and_no_memory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = AuditLog(tmp_path, 1 << 20)
    with caplog.at_level(logging.ERROR):
        for number in range(100):
            log.add(seen_at(float(number)), plan(seen_at(float(number)), FairPolicy(), float(number)))
    assert caplog.text.count("writing takes too long") == 100 - 32
