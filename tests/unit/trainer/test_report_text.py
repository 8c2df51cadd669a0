"""A report always fits the ConfigMap, and events read as lines of a log."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime

from espalier_core.files.documents import loads
from espalier_core.types.events import EVENT, EpochFinished, Warned
from espalier_core.types.report import MAX_REPORT_BYTES, Adaptation, AdaptationResult, AdaptationSource, Metric, Report
from espalier_trainer.kube.reporter import report_text
from espalier_trainer.signals.report import EventLog

NOW = datetime(2026, 1, 1, tzinfo=UTC)


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


def test_ordinary_report_of_the_most_adaptations_is_whole():
    whole = report([adaptation(number) for number in range(100)])
    assert read(report_text(whole)) == whole


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
