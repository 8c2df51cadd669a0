"""The trainer's part of a signal's trace: receiving an allocation, acknowledging it, asking for advice, growing.

The operator names the trace in the allocation (`Allocation.traceparent`). The SDK of OpenTelemetry is an optional
extra (`espalier-trainer[otel]`), imported only if an endpoint is given.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from espalier_core.types import environment
from espalier_core.types.allocation import Allocation

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor

logger = logging.getLogger(__name__)

SERVICE: Final = "espalier-trainer"
Value = str | int | float
Emit = Callable[[str, str, float, float, Mapping[str, Value]], None]
"""Function that exports a span: name, `traceparent` of its parent, begin and end in epoch seconds, attributes."""


@dataclass
class SignalSpans:
    """Exports a span for each stage of handling an allocation that names a trace; by default none."""

    emit: Emit | None = None
    clock: Callable[[], float] = time.time
    _heard: dict[int, float] = field(default_factory=dict)
    """Arrival time of each generation that is not acknowledged yet."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def heard(self, allocation: Allocation) -> None:
        """Record that `allocation` has arrived; any thread may call this, repeatedly."""
        if self.emit is not None and allocation.traceparent is not None:
            with self._lock:
                self._heard.setdefault(allocation.generation, self.clock())

    def acknowledged(self, allocation: Allocation) -> None:
        """Export the span `receive`: from the arrival of `allocation` to the step boundary that acknowledges it."""
        if self.emit is None or allocation.traceparent is None:
            return
        now = self.clock()
        with self._lock:
            begin = self._heard.get(allocation.generation, now)
            # Earlier generations were skipped, and sources repeat their last allocation.
            self._heard = {allocation.generation: begin}
        attributes = {"espalier.allocation.replicas": allocation.replicas}
        self._export("receive", allocation, begin, now, attributes)

    @contextmanager
    def stage(self, name: str, allocation: Allocation) -> Iterator[dict[str, Value]]:
        """Export the block as a span; yield its attributes, to which the block may add."""
        begin, attributes = self.clock(), dict[str, Value]()
        try:
            yield attributes
        finally:
            self._export(name, allocation, begin, self.clock(), attributes)

    def _export(
        self, name: str, allocation: Allocation, begin: float, end: float, attributes: Mapping[str, Value]
    ) -> None:
        if self.emit is not None and allocation.traceparent is not None:
            known = {"espalier.allocation.generation": allocation.generation, **attributes}
            self.emit(name, allocation.traceparent, begin, end, known)


def exporter_to(endpoint: str, common: Mapping[str, Value]) -> tuple[Emit | None, Callable[[], None]]:
    """Return the exporter of spans by OTLP over HTTP to `endpoint`, and its shutdown; without the SDK, (None, no-op).

    Tracing must not end training: a missing SDK is logged. Each span has the attributes `common`.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        logger.info("%s is set, but not used (%s): install espalier-trainer[otel]", environment.TRACES_ENDPOINT, error)
        return None, lambda: None
    # Batches are sent by a thread; unsent spans are dropped, and logged by the SDK.
    return tracer_into(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint, timeout=5)), common)


def tracer_into(processor: SpanProcessor, common: Mapping[str, Value]) -> tuple[Emit, Callable[[], None]]:
    """Return the exporter of spans with the attributes `common` to `processor`, and its shutdown."""
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import get_current_span
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    provider = TracerProvider(resource=Resource.create({"service.name": SERVICE}), shutdown_on_exit=False)
    provider.add_span_processor(processor)
    tracer, propagator = provider.get_tracer("espalier_trainer"), TraceContextTextMapPropagator()

    def emit(name: str, parent: str, begin: float, end: float, attributes: Mapping[str, Value]) -> None:
        context = propagator.extract({"traceparent": parent})
        if not get_current_span(context).get_span_context().is_valid:
            return  # written by something else: a span outside any trace is useless
        span = tracer.start_span(name, context, attributes={**common, **attributes}, start_time=_nanoseconds(begin))
        span.end(_nanoseconds(max(begin, end)))

    return emit, provider.shutdown


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)
