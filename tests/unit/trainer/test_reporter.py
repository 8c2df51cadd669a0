"""The report and events files."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime

import pytest

from espalier_core.files.documents import read_document
from espalier_core.types.events import EVENT, Warned
from espalier_core.types.report import Report
from espalier_trainer.signals.report import FileReporter, previous_used_seconds

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def _report(step: int = 0, used: float = 0.0) -> Report:
    return Report(job="default/t", incarnation="i", step=step, used_seconds=used, updated_time=NOW)


def _event(message: str) -> Warned:
    return Warned(time=NOW, used_seconds=1.5, reason="R", message=message)


def test_reports_are_written_when_urgent_and_every_two_seconds_otherwise(tmp_path):
    now = [100.0]
    path = tmp_path / "run" / "report.json"
    reporter = FileReporter(path, clock=lambda: now[0])
    made = []

    def make() -> Report:
        made.append(now[0])
        return _report(len(made))

    for _ in range(40):
        reporter.publish(make)
        now[0] += 0.125
    assert [round(time, 1) for time in made] == [100.0, 102.0, 104.0]
    reporter.publish(make, urgent=True)
    assert len(made) == 4
    assert read_document(path, Report).step == 4


def test_unwritable_folder_is_warned_about_once_until_it_works_again(tmp_path, caplog):
    blocked = tmp_path / "run"
    blocked.write_text("a file where the folder should be")
    reporter = FileReporter(blocked / "report.json", blocked / "events.jsonl")
    for _ in range(3):
        reporter.publish(_report, urgent=True)
        reporter.record(_event("x"))
    assert len(caplog.records) == 2
    blocked.unlink()
    reporter.publish(_report, urgent=True)
    reporter.record(_event("x"))
    assert (blocked / "report.json").exists()
    assert len((blocked / "events.jsonl").read_text().splitlines()) == 1


def test_events_are_whole_lines_after_a_torn_one(tmp_path):
    path = tmp_path / "events.jsonl"
    reporter = FileReporter(None, path)
    reporter.record(_event("first"))
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"time": "2026-')  # killed in the middle of a write
    FileReporter(None, path).record(_event("second"))
    events = [EVENT.validate_json(line) for line in path.read_text().splitlines()]
    assert [event.message for event in events] == ["first", "second"]


def test_file_that_is_one_torn_line_is_begun_again(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"ti')
    FileReporter(None, path).record(_event("only"))
    assert [json.loads(line)["message"] for line in path.read_text().splitlines()] == ["only"]


def test_full_disk_loses_an_event_and_nothing_else(tmp_path, caplog):
    if not os.path.exists("/dev/full"):
        pytest.skip("no device here that is always full")
    reporter = FileReporter(None, tmp_path / "events.jsonl")
    (tmp_path / "events.jsonl").symlink_to("/dev/full")
    reporter.record(_event("lost"))
    assert "No space left on device" in caplog.text
    (tmp_path / "events.jsonl").unlink()
    reporter.record(_event("kept"))
    assert len((tmp_path / "events.jsonl").read_text().splitlines()) == 1


def test_earlier_incarnations_use_of_the_budget_is_read_back(tmp_path):
    path = tmp_path / "report.json"
    assert previous_used_seconds(path, "default/t") == 0
    FileReporter(path).publish(lambda: _report(used=7.25), urgent=True)
    assert previous_used_seconds(path, "default/t") == 7.25
    assert previous_used_seconds(path, "default/other") == 0
    path.write_text("{")
    assert previous_used_seconds(path, "default/t") == 0
    assert previous_used_seconds(None, "default/t") == 0
