"""Traces of signals by OpenTelemetry: from the event that made the operator decide until the leader's acknowledgement.

The SDK is an optional extra (`espalier-operator[otel]`), imported only if an endpoint is given. Spans are made when a
signal is over, with the times of its stages, so nothing is kept open.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from espalier_core.metrics.tracing import SignalTrace
from espalier_operator.kube.signals import Signal

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor

SERVICE: Final = "espalier-operator"
MISSING: Final = (
    "the OpenTelemetry SDK is not installed; build the image with EXTRAS=otel, or leave --traces-endpoint out"
)


class TracesError(Exception):
    """Traces cannot be exported; the message says what to do."""


def exporter_to(endpoint: str) -> tuple[Callable[[Signal], None], Callable[[], None]]:
    """Return what exports a signal by OTLP over HTTP to `endpoint`, and what ends that. `TracesError` without SDK."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise TracesError(MISSING) from error
    # Batches are sent by a thread; what cannot be sent is dropped, and logged by the SDK.
    return tracer_into(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint, timeout=5)))


def tracer_into(processor: SpanProcessor) -> tuple[Callable[[Signal], None], Callable[[], None]]:
    """Return what makes the spans of a signal for `processor`, and what ends it."""
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
    from opentelemetry.trace import set_span_in_context

    class Ids(RandomIdGenerator):
        """Random ones, but for the first span of a signal."""

        known: SignalTrace | None = None

        def generate_trace_id(self) -> int:
            return super().generate_trace_id() if self.known is None else self.known.trace_id

        def generate_span_id(self) -> int:
            return super().generate_span_id() if self.known is None else self.known.span_id

    ids = Ids()
    provider = TracerProvider(
        resource=Resource.create({"service.name": SERVICE}), id_generator=ids, shutdown_on_exit=False
    )
    provider.add_span_processor(processor)
    tracer = provider.get_tracer("espalier_operator")

    def trace(signal: Signal) -> None:
        """Make the spans of a signal that is acknowledged."""
        if signal.written_at is None or signal.acknowledged_at is None:
            return
        noticed, written, acknowledged = map(
            _nanoseconds, (signal.noticed_at, signal.written_at, signal.acknowledged_at)
        )
        namespace, _, name = signal.job.partition("/")
        attributes: dict[str, str | int] = {
            "k8s.namespace.name": namespace,
            "espalier.job.name": name,
            "espalier.job.uid": signal.uid,
            "espalier.allocation.generation": signal.generation,
        }
        ids.known = SignalTrace.of(signal.uid, signal.generation)
        whole = tracer.start_span("signal", start_time=noticed, attributes=attributes)
        ids.known = None
        within = set_span_in_context(whole)
        for stage, begin, end in (("decide and write", noticed, written), ("acknowledge", written, acknowledged)):
            tracer.start_span(stage, context=within, start_time=begin).end(max(begin, end))
        whole.end(max(noticed, acknowledged))

    return trace, provider.shutdown


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)
