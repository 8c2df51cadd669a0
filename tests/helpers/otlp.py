"""A collector of traces on loopback, to which the SDK of OpenTelemetry sends by OTLP over HTTP."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span


@dataclass
class Collector:
    """Where it is, and what it was sent."""

    url: str
    received: list[bytes] = field(default_factory=list)

    def spans(self) -> list[Span]:
        """Return all spans that were sent."""
        message = ExportTraceServiceRequest.FromString(b"".join(self.received))
        return [span for each in message.resource_spans for scope in each.scope_spans for span in scope.spans]


@contextmanager
def collecting() -> Iterator[Collector]:
    """Serve a collector."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            collector.received.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        collector = Collector(f"http://127.0.0.1:{server.server_port}/v1/traces")
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join()
