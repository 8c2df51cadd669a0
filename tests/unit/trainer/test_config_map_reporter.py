"""How often a leader in a cluster reports."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, cast

from espalier_core.k8s.client import Client
from espalier_core.types.report import Report
from espalier_trainer.kube.reporter import ConfigMapReporter
from espalier_trainer.signals.report import EventLog


def test_what_only_goes_on_is_reported_less_and_less_often_until_there_is_news() -> None:
    """Every ten seconds at last: figures alone are not worth a request to the API server each second or two."""
    now = 0.0
    reporter = ConfigMapReporter(cast(Client, None), "ns", "job-report", EventLog(), clock=lambda: now)
    told: list[float] = []

    def make(**facts: Any) -> Report:
        told.append(now)
        return Report(job="ns/job", incarnation="a", updated_time=datetime.now(UTC), **facts)

    for half in range(200):
        now = half / 2
        reporter.publish(make, urgent=half in (0, 121))
    assert told == [0.0, 2.0, 6.0, 14.0, 24.0, 34.0, 44.0, 54.0, 60.5, 62.5, 66.5, 74.5, 84.5, 94.5]
