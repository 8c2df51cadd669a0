"""Metrics and traces of the operator."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from espalier_core.metrics import FAMILIES, Exporter
from espalier_core.types.allocation import SignalTrace
from espalier_core.types.reasons import Reason
from espalier_core.types.report import MAX_METRICS, MAX_PROBABILITIES, Adaptation, Metric
from espalier_core.types.status import JobStatus, SchedulingStatus, TimeBudgetStatus, TrainingStatus
from espalier_operator.kube.metrics.exporter import (
    KEPT_SECONDS,
    MOST_NAMES,
    MOST_REMEMBERED,
    REMEMBERED_SECONDS,
    OperatorMetrics,
)
from espalier_operator.kube.metrics.measurements import Owner, Signals, exporter_to, measurements, tracer_into
from espalier_operator.kube.metrics.series import LiveJob
from espalier_operator.model import Snapshot
from espalier_operator.model.actions import Admit, GrantExtra, Plan
from operator_world.kube_objects import adaptation
from otlp import collecting

NOW = 1_000.0
OWNER = Owner(namespace="team", queue="research", base_gpus=1, gpus_per_worker=1, created_at=NOW)


def scraped(metrics: OperatorMetrics, *, leads: bool = True) -> dict[tuple[str, frozenset[str]], float]:
    """Return the samples by name and set of label values."""
    return {
        (sample.name, frozenset(sample.labels.values())): sample.value
        for metric in text_string_to_metric_families(metrics.text(leads=leads).decode())
        for sample in metric.samples
    }


def live(name: str, used: float = 0.0) -> LiveJob:
    return LiveJob(
        owner=OWNER, name=name, status=JobStatus(time_budget=TimeBudgetStatus(used_seconds=used)), facts=None
    )


def test_what_happened_is_counted_under_its_labels() -> None:
    metrics = OperatorMetrics(lambda: NOW)
    before, after = JobStatus(), JobStatus(restarts=2, preemptions=1)
    metrics.add(measurements(before, after, OWNER))
    metrics.add(measurements(before, after, OWNER))
    found = scraped(metrics)
    place = frozenset({"team", "research"})
    assert found["espalier_restarts_total", place] == 4
    assert found["espalier_preemptions_total", place] == 2


def test_a_tick_tells_its_time_and_its_decisions() -> None:
    metrics = OperatorMetrics(lambda: NOW)
    grant = GrantExtra(job="team/one", extra=1)
    metrics.ticked(Plan(actions=(grant, grant, Admit(job="a", gpu_type="x")), refusals={}, wake_at=None), 0.02, 0.03)
    found = scraped(metrics)
    assert found["espalier_scheduler_last_tick_timestamp_seconds", frozenset()] == NOW
    assert found["espalier_scheduler_tick_seconds_sum", frozenset({"plan"})] == pytest.approx(0.02)
    assert found["espalier_scheduler_actions_total", frozenset({"GrantExtra", Reason.EXTRA_GPUS_GRANTED})] == 2


def test_series_of_a_job_go_with_it() -> None:
    metrics = OperatorMetrics(lambda: NOW)
    jobs = [live("one", 5.0), live("two", 6.0)]
    metrics.look(jobs, Snapshot(taken_at=NOW), {"pods": NOW - 7}, {"pods": 2}, {"TooLarge": 3})
    used = "espalier_job_time_used_seconds_total"
    found = scraped(metrics)
    assert found[used, frozenset({"team", "one"})] == 5
    assert found["espalier_watch_age_seconds", frozenset({"pods"})] == 7
    assert found["espalier_operator_misattributed_objects", frozenset({"pods"})] == 2
    assert found["espalier_operator_unread_reports", frozenset({"TooLarge"})] == 3
    metrics.look([live("two", 7.0)], Snapshot(taken_at=NOW), {}, {}, {})
    found = scraped(metrics)
    assert (used, frozenset({"team", "one"})) not in found
    assert found[used, frozenset({"team", "two"})] == 7


def test_series_of_queues_that_nobody_uses_any_more_go_after_a_while() -> None:
    """Names that people choose: a queue for each job would leave a series for each that ever was."""
    now = NOW
    metrics = OperatorMetrics(lambda: now)
    others = [replace(OWNER, queue=f"queue-{number}") for number in range(50)]
    admitted = JobStatus(scheduling=SchedulingStatus(admitted_at=datetime.fromtimestamp(NOW + 3, UTC)))
    for owner in (OWNER, *others):
        metrics.add(measurements(None, admitted, owner))
    first = scraped(metrics)
    for minutes in range(1, 30):
        now = NOW + 60 * minutes
        metrics.look([live("one")], Snapshot(taken_at=now), {}, {}, {})
        if minutes == 14:
            assert not first.keys() - scraped(metrics).keys()
    found = scraped(metrics)
    assert not [labels for _, labels in found if any(value.startswith("queue-") for value in labels)]
    assert found["espalier_jobs_created_total", frozenset({"team", "research"})] == 1
    assert found["espalier_queue_seconds_count", frozenset({"research"})] == 1
    metrics.add(measurements(None, JobStatus(), others[0]))
    assert scraped(metrics)["espalier_jobs_created_total", frozenset({"team", "queue-0"})] == 1


def test_series_of_a_queue_that_is_used_again_begin_at_zero() -> None:
    """Else the next event would make them, and who knows them from before would see no rise. Not for ever, nor all."""
    now = NOW
    metrics = OperatorMetrics(lambda: now)
    created = "espalier_jobs_created_total"
    others = [replace(OWNER, queue=f"queue-{number}") for number in range(MOST_REMEMBERED + 1)]
    for owner in (OWNER, *others):
        metrics.add(measurements(None, JobStatus(), owner))

    def look_after(seconds: float, *owners: Owner) -> dict[tuple[str, frozenset[str]], float]:
        nonlocal now
        now += seconds
        jobs = [replace(live("one"), owner=owner) for owner in owners]
        metrics.look(jobs, Snapshot(taken_at=now), {}, {}, {})
        return scraped(metrics)

    def places(*owners: Owner) -> list[frozenset[str]]:
        return [frozenset({owner.namespace, owner.queue}) for owner in owners]

    first, second, *_, last = others
    assert {place for name, place in look_after(KEPT_SECONDS + 1, OWNER) if name == created} == {*places(OWNER)}
    found = look_after(60, OWNER, first, second)
    assert [found.get((created, place)) for place in places(OWNER, first, second)] == [1, None, 0]
    metrics.add(measurements(None, JobStatus(), second))
    assert scraped(metrics)[created, *places(second)] == 1
    look_after(REMEMBERED_SECONDS, OWNER)
    assert (created, *places(last)) not in look_after(60, OWNER, last)


def test_a_replica_that_waits_says_so_and_which_version_it_is() -> None:
    found = scraped(OperatorMetrics(), leads=False)
    assert found["espalier_operator_leader", frozenset()] == 0
    assert found["espalier_build_info", frozenset({version("espalier-operator")})] == 1


def test_all_of_the_operator_s_catalogue_is_declared() -> None:
    text = OperatorMetrics().text(leads=True).decode()
    for family in FAMILIES:
        assert (f"# TYPE {family.name} " in text) == (family.exporter is Exporter.OPERATOR), family.name


def test_a_signal_is_timed_from_the_first_news_to_the_write_and_on_to_the_acknowledgement() -> None:
    told: list[tuple[str, float]] = []
    signals = Signals(lambda stage, seconds: told.append((stage, seconds)))
    signals.noticed(10.0)
    signals.noticed(10.4)
    signals.observed()
    signals.granted("uid", 3, 10.5)
    signals.written("uid", 2, 10.6)  # an older status on its way
    signals.acknowledged("uid", 3, 10.7)  # cannot be: it was not told yet
    assert told == []
    signals.written("uid", 3, 11.0)
    signals.written("uid", 3, 15.0)
    signals.acknowledged("uid", 2, 11.1)
    signals.acknowledged("uid", 4, 11.25)
    signals.acknowledged("uid", 4, 12.0)
    assert told == [("written", 1.0), ("acknowledged", 0.25)]
    assert list(signals.waiting()) == []


def test_a_grant_without_news_is_timed_from_its_plan_and_one_of_a_job_that_goes_is_forgotten() -> None:
    told: list[tuple[str, float]] = []
    signals = Signals(lambda stage, seconds: told.append((stage, seconds)))
    signals.observed()
    signals.granted("a", 1, 5.0)
    signals.granted("b", 1, 5.0)
    signals.forget("b")
    signals.written("a", 1, 5.5)
    signals.written("b", 1, 5.5)
    assert told == [("written", 0.5)]
    assert list(signals.waiting()) == ["a"]


def one_signal(signals: Signals) -> None:
    """Let a job be told of its third allocation: noticed at 10, written at 10.5, acknowledged at 12 s."""
    signals.noticed(10.0)
    signals.observed()
    signals.granted("uid-1", 3, 10.2, "team/digits")
    signals.written("uid-1", 3, 10.5)
    signals.acknowledged("uid-1", 3, 12.0)


def seconds(span: ReadableSpan) -> tuple[float, float]:
    return (span.start_time or 0) / 1e9, (span.end_time or 0) / 1e9


def test_a_signal_is_one_trace_from_the_event_to_the_acknowledgement() -> None:
    kept = InMemorySpanExporter()
    signals = Signals(lambda stage, duration: None)
    signals.trace, end = tracer_into(SimpleSpanProcessor(kept))
    one_signal(signals)
    end()
    spans = {span.name: span for span in kept.get_finished_spans()}
    assert {name: seconds(span) for name, span in spans.items()} == {
        "decide and write": (10.0, 10.5),
        "acknowledge": (10.5, 12.0),
        "signal": (10.0, 12.0),
    }
    root = spans.pop("signal")
    named = SignalTrace.of("uid-1", 3)
    assert (root.context.trace_id, root.context.span_id, root.parent) == (named.trace_id, named.span_id, None)
    for span in spans.values():
        assert (span.context.trace_id, span.parent.span_id) == (named.trace_id, named.span_id)
    assert root.attributes == {
        "k8s.namespace.name": "team",
        "espalier.job.name": "digits",
        "espalier.job.uid": "uid-1",
        "espalier.allocation.generation": 3,
    }


def test_the_traceparent_is_as_w3c_writes_it_and_differs_by_job_and_generation() -> None:
    found = {SignalTrace.of(uid, generation).traceparent for uid in ("a", "b") for generation in range(3)}
    assert len(found) == 6
    assert all(re.fullmatch("00-[0-9a-f]{32}-[0-9a-f]{16}-01", each) for each in found)


def test_spans_are_exported_by_otlp() -> None:
    signals = Signals(lambda stage, duration: None)
    with collecting() as collector:
        signals.trace, end = exporter_to(collector.url)
        one_signal(signals)
        end()  # sends what waits
    assert sorted(span.name for span in collector.spans()) == ["acknowledge", "decide and write", "signal"]


def test_without_an_endpoint_the_sdk_is_not_imported() -> None:
    code = "import espalier_operator.kube.process.main, sys; sys.exit('opentelemetry.sdk' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


# ---- names that jobs choose become values of labels: few, short, and readable, whatever a status has

TEXTS = st.text(max_size=300) | st.text(max_size=4).map(lambda text: 80 * text)
NAMES = st.lists(TEXTS, max_size=6).flatmap(
    lambda few: st.integers(0, 150).map(lambda many: few + [f"n{i}" for i in range(many)])
)
VALUE = re.compile("[ -~]{0,253}")


def advised(action: str, choices: list[str], trigger: str) -> Adaptation:
    probabilities = dict.fromkeys(choices, 0.5)
    return adaptation(decision_id=trigger, trigger=trigger, action=action, policy=trigger, probabilities=probabilities)


def status(figures: list[str], made: list[Adaptation]) -> JobStatus:
    metrics = tuple(Metric(name=name, value=1) for name in figures)
    return JobStatus(training=TrainingStatus(metrics=metrics), adaptations=tuple(made))


def look_at(metrics: OperatorMetrics, owner: Owner, named: JobStatus) -> list[Sample]:
    """Return the samples once a job has this status."""
    metrics.look([LiveJob(owner=owner, name="one", status=named, facts=None)], Snapshot(taken_at=NOW), {}, {}, {})
    families = text_string_to_metric_families(metrics.text(leads=True).decode())
    return [sample for family in families for sample in family.samples]


@settings(max_examples=30)
@given(NAMES, st.lists(st.builds(advised, TEXTS, NAMES, TEXTS), max_size=2), TEXTS)
def test_whatever_a_job_names_its_labels_are_few_and_short(
    figures: list[str], made: list[Adaptation], queue: str
) -> None:
    """Also of what is counted, where each new value would be a series for ever."""
    metrics, named, owner = OperatorMetrics(lambda: NOW), status(figures, made), replace(OWNER, queue=queue)
    metrics.add(measurements(None, named, owner))
    samples = look_at(metrics, owner, named)
    assert all(VALUE.fullmatch(value) for sample in samples for value in sample.labels.values())
    found = Counter(sample.name for sample in samples)
    assert found["espalier_job_metric"] <= MAX_METRICS
    assert found["espalier_job_decision_probability_ratio"] <= MAX_PROBABILITIES
    assert found["espalier_adaptations_total"] <= 2


def test_new_names_with_each_report_do_not_make_new_series_without_end() -> None:
    """The first ones stay; a job of the same name that was made later chooses its own."""
    metrics, seen, made = OperatorMetrics(lambda: NOW), set[str](), set[str]()

    def look(owner: Owner, figures: list[str], choices: list[str]) -> None:
        for sample in look_at(metrics, owner, status(figures, [advised("Nothing", choices, "t")])):
            if sample.name == "espalier_job_metric":
                seen.add(sample.labels["metric"])
            elif sample.name == "espalier_job_decision_probability_ratio":
                made.add(sample.labels["choice"])

    for turn in range(20):
        look(OWNER, ["loss", *(f"{turn}-{i}" for i in range(20))], [f"{turn}-{i}" for i in range(50)])
    assert len(seen) == MOST_NAMES["espalier_job_metric"]
    assert len(made) == MOST_NAMES["espalier_job_decision_probability_ratio"]
    seen.clear()
    look(OWNER, ["loss", "new"], [])
    assert seen == {"loss"}
    look(replace(OWNER, created_at=NOW + 9), ["new"], [])
    assert seen == {"loss", "new"}
