"""Traces of signals: real spans of the SDK, sent to a real server, with the name that the status gives the trace."""

from __future__ import annotations

import re
import subprocess
import sys

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from espalier_core.types.allocation import SignalTrace
from espalier_operator.kube.metrics.measurements import Signals, exporter_to, tracer_into
from otlp import collecting


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
        assert span.parent is not None
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
