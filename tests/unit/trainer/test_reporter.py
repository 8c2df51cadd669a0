"""Reports and events: when they are written, what of them, and how they survive a torn file and a full disk."""

from __future__ import annotations

import json
import logging
import os
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from espalier_core.files.documents import loads, read_document
from espalier_core.k8s.client import Client
from espalier_core.types.events import EVENT, EpochFinished, Warned
from espalier_core.types.report import MAX_REPORT_BYTES, Adaptation, AdaptationResult, AdaptationSource, Metric, Report
from espalier_trainer.kube.reporter import ConfigMapReporter, report_text
from espalier_trainer.signals.report import EventLog, FileReporter, previous_used_seconds

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


def adaptation(number: int, points: int = 3, message: str = "") -> Adaptation:
    return Adaptation(
        decision_id=f"d-{number}",
        time=NOW,
        used_seconds=number,
        trigger="ExtraGPUsGranted",
        generation=number,
        action="Nothing",
        source=AdaptationSource.AGENT,
        probabilities={f"Deepen(features.{point}.block)": 1 / points for point in range(points)},
        result=AdaptationResult.DECLINED,
        message=message,
        depth_before=4,
        depth_after=4,
        parameters_before=1,
        parameters_after=1,
        seconds=0.1,
    )


def report(adaptations: list[Adaptation], message: str = "") -> Report:
    return Report(
        job="default/t", incarnation="i", message=message, adaptations=tuple(adaptations), updated_time=NOW, step=7
    )


def read(text: str) -> Report:
    assert len(text.encode()) <= MAX_REPORT_BYTES
    return loads(text, Report, "test")


def test_probabilities_go_before_adaptations_do():
    kept = read(report_text(report([adaptation(number, points=200) for number in range(100)]))).adaptations
    assert [entry.decision_id for entry in kept] == [f"d-{number}" for number in range(100)]
    assert not kept[0].probabilities
    assert len(kept[-1].probabilities) == 200


def test_largest_number_of_adaptations_with_many_growth_points_is_whole():
    """A hundred is the most that a job may allow, and twenty growth points are those of a deep network."""
    whole = report([adaptation(number, points=20) for number in range(100)])
    assert read(report_text(whole)) == whole


def test_figures_without_end_do_not_make_a_report_too_large():
    figures = tuple(Metric(name="\U0001f331" * 128 + "." * (number % 2), value=number) for number in range(2000))
    kept = read(report_text(report([], message="\U0001f331" * 100_000).model_copy(update={"metrics": figures})))
    assert [metric.value for metric in kept.metrics] == [2.0 * number for number in range(len(kept.metrics))]
    assert len(kept.metrics) >= 32


def test_newest_adaptations_are_kept():
    kept = read(report_text(report([adaptation(number, message="x" * 20_000) for number in range(50)]))).adaptations
    assert [entry.decision_id for entry in kept] == [f"d-{number}" for number in range(50 - len(kept), 50)]
    assert 4 <= len(kept) < 7


def test_whatever_is_in_it_a_report_fits():
    monstrous = report([adaptation(0, message="é" * 1_000_000)], message="é" * 1_000_000)
    small = read(report_text(monstrous))
    assert small.adaptations == ()
    assert small.message == "é" * 4096
    assert small.step == 7


def test_events_are_json_lines_and_quick_epochs_are_thinned(caplog):
    now = [100.0]
    log = EventLog(clock=lambda: now[0])
    epoch = EpochFinished(
        time=NOW,
        used_seconds=1,
        epoch=1,
        step=2,
        train_loss=1,
        validation_loss=1,
        validation_accuracy=0.5,
        learning_rate=0.1,
        depth=4,
        parameters=9,
        max_step_gap_seconds=0.1,
    )
    with caplog.at_level(logging.INFO):
        for _ in range(50):
            log.record(epoch)
            now[0] += 0.1
        log.record(Warned(time=NOW, used_seconds=1, reason="R", message="m"))
    lines = [record.message.removeprefix("event ") for record in caplog.records]
    assert [json.loads(line)["type"] for line in lines] == ["EpochFinished"] * 3 + ["Warned"]
    assert EVENT.validate_json(lines[0]) == epoch


def test_what_only_goes_on_is_reported_less_and_less_often_until_there_is_news():
    """Every ten seconds at last: figures alone are not worth a request to the API server each second or two."""
    now = 0.0
    reporter = ConfigMapReporter(cast(Client, None), "ns", "job-report", EventLog(), clock=lambda: now)
    told: list[float] = []

    def make(**facts: Any) -> Report:
        told.append(now)
        return Report(job="ns/job", incarnation="a", updated_time=datetime.now(UTC), **facts)

    for half in range(200):
        now = half / 2
        reporter.publish(make, urgent=half in (0, 121))
    assert told == [0.0, 2.0, 6.0, 14.0, 24.0, 34.0, 44.0, 54.0, 60.5, 62.5, 66.5, 74.5, 84.5, 94.5]
