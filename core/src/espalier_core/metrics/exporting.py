"""The metrics of one part as Prometheus scrapes them, from the catalogue in `espalier_core.metrics.catalogue`."""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from espalier_core.metrics.catalogue import FAMILIES, Exporter, MetricType

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4
"""Content type of `Metrics.text`."""


class Metrics:
    """The metrics of one part, by the catalogue's names. Safe from several threads; a wrong name is a `KeyError`.

    Labels are given by value, in the catalogue's order.
    """

    def __init__(self, exporter: Exporter, without: Container[str] = ()) -> None:
        """Start from zero with all metrics of `exporter` but those named in `without`."""
        self.registry = CollectorRegistry()
        self.exposed = CollectorRegistry()
        """What is scraped; `text` returns it."""
        self.exposed.register(_WithoutCreated(self.registry))
        self._counters: dict[str, Counter] = {}
        self._gauges: dict[str, Gauge] = {}
        self._histograms: dict[str, Histogram] = {}
        for family in FAMILIES:
            if family.exporter is not exporter or family.name in without:
                continue
            name, about, labels = family.name, family.help, family.labels
            match family.type:
                case MetricType.COUNTER:
                    self._counters[name] = Counter(name, about, labels, registry=self.registry)
                case MetricType.GAUGE:
                    self._gauges[name] = Gauge(name, about, labels, registry=self.registry)
                case MetricType.HISTOGRAM:
                    made = Histogram(name, about, labels, buckets=family.buckets, registry=self.registry)
                    self._histograms[name] = made

    def count(self, name: str, *labels: str, amount: float = 1.0) -> None:
        """Increase a counter by `amount`."""
        counter = self._counters[name]
        (counter.labels(*labels) if labels else counter).inc(amount)

    def set(self, name: str, value: float, *labels: str) -> None:
        """Set a gauge."""
        gauge = self._gauges[name]
        (gauge.labels(*labels) if labels else gauge).set(value)

    def observe(self, name: str, value: float, *labels: str) -> None:
        """Add `value` to a histogram."""
        histogram = self._histograms[name]
        (histogram.labels(*labels) if labels else histogram).observe(value)

    def begin(self, name: str, *labels: str) -> None:
        """Show a series of a counter or histogram before anything was counted: at zero."""
        (self._counters.get(name) or self._histograms[name]).labels(*labels)

    def forget(self, name: str, *labels: str) -> None:
        """Remove a series; if it is used again, it starts at zero."""
        (self._counters.get(name) or self._histograms.get(name) or self._gauges[name]).remove(*labels)

    def is_counter(self, name: str) -> bool:
        """Return whether a metric that is counted here is a counter."""
        return name in self._counters

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.exposed)


class _WithoutCreated(Collector):
    """All of a registry but when each series was made, a gauge that the library adds to each counter and histogram.

    Nothing asks for these, and they would be a third of all series. The library's own switch is for the whole process,
    which may be a person's training script.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        """Yield them."""
        for metric in self._registry.collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric
