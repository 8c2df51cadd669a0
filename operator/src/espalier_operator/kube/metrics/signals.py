"""Measures and traces signals: from an extra worker that runs until its leader acknowledges the new allocation.

Times are epoch seconds. Grants of an earlier operator are not measured, because the time of their events is unknown.

Traces are OpenTelemetry's. The SDK is an optional extra (`espalier-operator[otel]`), imported only if an endpoint is
given. Spans are made when a signal is over, with the times of its stages, so nothing is kept open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from espalier_core.types.allocation import SignalTrace

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor

SERVICE: Final = "espalier-operator"
MISSING: Final = (
    "the OpenTelemetry SDK is not installed; build the image with EXTRAS=otel, or leave --traces-endpoint out"
)


@dataclass(slots=True)
class Signal:
    """An allocation on its way to its leader."""

    uid: str
    job: str
    """Key of the job."""
    generation: int
    noticed_at: float
    written_at: float | None = None
    acknowledged_at: float | None = None


class Signals:
    """Grants that were not acknowledged yet."""

    def __init__(self, observe: Callable[[str, float], None]) -> None:
        """`observe` receives a stage (`written`, `acknowledged`) and its duration in seconds."""
        self._observe = observe
        self.trace: Callable[[Signal], None] = lambda signal: None
        """Called with each signal that is acknowledged."""
        self._noticed_at: float | None = None
        self._planned_from: float | None = None
        self._waiting: dict[str, Signal] = {}

    def noticed(self, now: float) -> None:
        """Take note that there is news; of a burst the first counts."""
        if self._noticed_at is None:
            self._noticed_at = now

    def observed(self) -> None:
        """Take note that all news up to now goes into the plan that is made next."""
        self._planned_from, self._noticed_at = self._noticed_at, None

    def granted(self, uid: str, generation: int, now: float, job: str = "") -> None:
        """Take note that the job of `uid` has more workers that run, as this generation of its allocation."""
        noticed_at = now if self._planned_from is None else self._planned_from
        self._waiting[uid] = Signal(uid, job, generation, noticed_at)

    def written(self, uid: str, generation: int, now: float) -> None:
        """Take note that this generation is in the job's status."""
        signal = self._waiting.get(uid)
        if signal is not None and signal.written_at is None and generation >= signal.generation:
            signal.written_at = now
            self._observe("written", max(0.0, now - signal.noticed_at))

    def acknowledged(self, uid: str, generation: int, now: float) -> None:
        """Take note that the job's leader knows of this generation."""
        signal = self._waiting.get(uid)
        if signal is not None and signal.written_at is not None and generation >= signal.generation:
            self._observe("acknowledged", max(0.0, now - signal.written_at))
            signal.acknowledged_at = now
            del self._waiting[uid]
            self.trace(signal)

    def forget(self, uid: str) -> None:
        """Take note that the job is gone, or over."""
        self._waiting.pop(uid, None)

    def waiting(self) -> Iterator[str]:
        """Yield the UIDs of jobs that have not acknowledged."""
        return iter(list(self._waiting))


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
