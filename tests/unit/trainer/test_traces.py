"""The trainer's part of a signal's trace: real spans of the SDK, in memory and over HTTP."""

from __future__ import annotations

import logging
import sys

from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from espalier_core.files.documents import write_document
from espalier_core.types.allocation import Allocation, AllocationDocument, SignalTrace, TimeBudget
from espalier_core.types.events import AdaptationFinished
from espalier_core.types.job import Fallback
from espalier_trainer.builtin_loop.trainer import Trainer
from espalier_trainer.growth.advisor import FallbackPolicy, NoAgent, WithFallback
from espalier_trainer.models.zoo import build_model
from espalier_trainer.run.services import Services
from espalier_trainer.signals.report import MemoryReporter
from espalier_trainer.signals.scheduler import AllocationFileSource, DocumentScheduler
from espalier_trainer.signals.traces import SignalSpans, exporter_to, tracer_into
from otlp import collecting
from trainer_processes import ended, until

TRACE = SignalTrace.of("uid-1", 3)


def allocated(path, job, *, traceparent: str | None = TRACE.traceparent, generation: int = 3) -> None:
    """Leave an allocation of two workers for the job."""
    allocation = Allocation(generation=generation, replicas=2, gpus=2, traceparent=traceparent)
    budget = TimeBudget(budget_seconds=job.spec.time_budget_seconds)
    write_document(path, AllocationDocument(job=job.key, allocation=allocation, time_budget=budget))


def test_a_run_adds_what_it_does_with_an_allocation_to_its_trace(make_job, digits, tmp_path):
    job = make_job(timeBudgetSeconds=3600, adaptation={"maxAdaptations": 1, "fallback": "Heuristic"})
    path, reporter = tmp_path / "allocation.json", MemoryReporter()
    allocated(path, job)
    kept = InMemorySpanExporter()
    emit, end = tracer_into(SimpleSpanProcessor(kept), {"espalier.job.name": "t"})
    spans = SignalSpans(emit)
    services = Services(
        DocumentScheduler((AllocationFileSource(path, job, heard=spans.heard),), job),
        reporter,
        WithFallback(NoAgent(), FallbackPolicy(Fallback.HEURISTIC, 0)),
        stop=lambda: any(isinstance(event, AdaptationFinished) for event in reporter.events),
        spans=spans,
    )
    model = build_model(job.spec.training.model, digits.classes, digits.example_input(), digits.task)
    Trainer(job, model, digits, services).run()
    end()
    done = kept.get_finished_spans()
    assert [span.name for span in done] == ["receive", "consult", "adapt"]
    for span in done:
        assert (span.context.trace_id, span.parent.span_id) == (TRACE.trace_id, TRACE.span_id)
        assert (span.attributes["espalier.allocation.generation"], span.attributes["espalier.job.name"]) == (3, "t")
    assert [span.start_time for span in done] == sorted(span.start_time for span in done)
    assert all(span.start_time <= span.end_time for span in done)
    receive, consult, adapt = (dict(span.attributes or {}) for span in done)
    assert receive["espalier.allocation.replicas"] == 2
    assert (consult["espalier.decision.source"], adapt["espalier.adaptation.result"]) == ("fallback", "Grown")
    assert consult["espalier.decision.id"] == adapt["espalier.decision.id"]


def test_the_time_from_hearing_to_acknowledging_is_that_of_the_first_source():
    made, now = [], iter((1.0, 5.0, 6.0, 8.0))
    spans = SignalSpans(lambda name, parent, begin, end, known: made.append((name, begin, end)), lambda: next(now))
    told = Allocation(generation=3, replicas=2, traceparent=TRACE.traceparent)
    spans.heard(told)
    spans.heard(told)  # the second source
    spans.acknowledged(told)
    spans.acknowledged(told.model_copy(update={"generation": 4}))
    assert made == [("receive", 1.0, 6.0), ("receive", 8.0, 8.0)]


def test_what_names_no_trace_is_not_traced():
    kept = InMemorySpanExporter()
    emit, end = tracer_into(SimpleSpanProcessor(kept), {})
    spans = SignalSpans(emit)
    for traceparent in (None, "", "00-zz", f"00-{'0' * 32}-{'0' * 16}-01"):
        told = Allocation(generation=1, traceparent=traceparent)
        spans.heard(told)
        spans.acknowledged(told)
        with spans.stage("consult", told):
            pass
    end()
    assert kept.get_finished_spans() == ()


def test_a_trainer_process_exports_by_otlp(workplace, make_job):
    with collecting() as collector:
        place = workplace(
            make_job(timeBudgetSeconds=3600, adaptation={"maxAdaptations": 1, "fallback": "Heuristic"}),
            prelude=f"os.environ['ESPALIER_TRACES_ENDPOINT'] = {collector.url!r}",
        )
        allocated(place.folder / "allocation.json", place.job)
        process = place.start()
        until(lambda: any(isinstance(event, AdaptationFinished) for event in place.events()), place)
        process.terminate()
        assert ended(process, place) == 143, place.log
    sent = collector.spans()
    assert sorted(span.name for span in sent) == ["adapt", "consult", "receive"]
    assert {(span.trace_id, span.parent_span_id) for span in sent} == {
        (TRACE.trace_id.to_bytes(16), TRACE.span_id.to_bytes(8))
    }


def test_training_does_not_depend_on_a_collector(workplace, make_job):
    place = workplace(
        make_job(timeBudgetSeconds=0.3, adaptation={"mode": "Off"}),
        prelude="os.environ['ESPALIER_TRACES_ENDPOINT'] = 'http://127.0.0.1:9/v1/traces'",
    )
    allocated(place.folder / "allocation.json", place.job)
    process = place.start()
    assert ended(process, place) == 0, place.log


def test_without_the_sdk_nothing_is_exported_and_the_log_says_so(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with caplog.at_level(logging.INFO):
        emit, end = exporter_to("http://127.0.0.1:9/v1/traces", {})
    end()
    assert emit is None
    assert "install espalier-trainer[otel]" in caplog.text
