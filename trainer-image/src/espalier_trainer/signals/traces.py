"""The trainer's part of a signal's trace: hearing of an allocation, acknowledging it, asking how to grow, growing.

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
"""Exports a span: its name, the `traceparent` of its parent, begin and end in epoch seconds, and its attributes."""


@dataclass
class SignalSpans:
    """Makes a span of each step that a trainer takes with an allocation which names a trace; by default of none."""

    emit: Emit | None = None
    clock: Callable[[], float] = time.time
    _heard: dict[int, float] = field(default_factory=dict)
    """When each generation was heard of that is not acknowledged yet."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def heard(self, allocation: Allocation) -> None:
        """Record that `allocation` has arrived; any thread may call this, again and again."""
        if self.emit is not None and allocation.traceparent is not None:
            with self._lock:
                self._heard.setdefault(allocation.generation, self.clock())

    def acknowledged(self, allocation: Allocation) -> None:
        """Export the span `receive`: from hearing of `allocation` to the step boundary that acknowledges it."""
        if self.emit is None or allocation.traceparent is None:
            return
        now = self.clock()
        with self._lock:
            begin = self._heard.get(allocation.generation, now)
            # Those before it were passed over, and sources repeat what they gave last.
            self._heard = {allocation.generation: begin}
        attributes = {"espalier.allocation.replicas": allocation.replicas}
        self._export("receive", allocation, begin, now, attributes)

    @contextmanager
    def stage(self, name: str, allocation: Allocation) -> Iterator[dict[str, Value]]:
        """Export what is done within as a span; yields its attributes, to be added to."""
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
    """Return what exports spans by OTLP over HTTP to `endpoint`, and what ends that; without the SDK, nothing.

    A trace is not worth a training: what is missing is logged. Each span has the attributes `common`.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        logger.info("%s is set, but not used (%s): install espalier-trainer[otel]", environment.TRACES_ENDPOINT, error)
        return None, lambda: None
    # Batches are sent by a thread; what cannot be sent is dropped, and logged by the SDK.
    return tracer_into(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint, timeout=5)), common)


def tracer_into(processor: SpanProcessor, common: Mapping[str, Value]) -> tuple[Emit, Callable[[], None]]:
    """Return what makes spans with the attributes `common` for `processor`, and what ends it."""
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
            return  # somebody else wrote it: a span of no trace helps nobody
        span = tracer.start_span(name, context, attributes={**common, **attributes}, start_time=_nanoseconds(begin))
        span.end(_nanoseconds(max(begin, end)))

    return emit, provider.shutdown


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)
