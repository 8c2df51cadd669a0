"""`/metrics` of the operator: counters that events increment, and series computed for each scrape."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from espalier_core.metrics import Exporter, Metrics, MetricType, family
from espalier_core.types.report import MAX_METRICS, MAX_PROBABILITIES
from espalier_operator.kube.metrics.measurements import Measurement, Owner, Signals
from espalier_operator.kube.metrics.series import SCRAPED, LiveJob, Series, label_values, series_of
from espalier_operator.model import Snapshot
from espalier_operator.model.actions import Plan
from espalier_operator.policies.remote import QuestionOutcome
from espalier_operator.policies.view import Share

MOST_NAMES: Final = {
    "espalier_job_metric": MAX_METRICS,
    "espalier_job_decision_probability_ratio": 4 * MAX_PROBABILITIES,
}
"""Maximum number of names that a job may choose for a metric's third label while this operator runs. Growth makes new
actions."""
KEPT_SECONDS: Final = 900.0
"""Seconds for which counters of a namespace and queue without jobs are kept."""
REMEMBERED_SECONDS: Final = 7200.0
"""Seconds after that for which dropped series are remembered. An alert takes a series that begins at 1 for a first
event only if there was none in the hour before its window (`espalier_monitoring.boards.risen`), half an hour."""
MOST_REMEMBERED: Final = 1000
"""Maximum number of namespaces and queues that are remembered, the newest."""


class OperatorMetrics:
    """The operator's metrics. All methods can be called at any time; none fails or waits."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        """Start from zero; `clock` returns epoch seconds."""
        self._clock = clock
        self._counted = Metrics(Exporter.OPERATOR, without=SCRAPED)
        self._scraped = _Scraped()
        self._counted.registry.register(self._scraped)
        self._counted.set("espalier_build_info", 1, version("espalier-operator"))
        self._owners = _Owners()
        self._chosen = _ChosenNames()
        self.signals = Signals(lambda stage, seconds: self._counted.observe("espalier_signal_seconds", seconds, stage))

    def decides_by(self, policy: str) -> None:
        """Set the scheduling policy, with its settings."""
        self._counted.set("espalier_scheduling_policy_info", 1, policy)

    # ---- events

    def add(self, happened: Iterable[Measurement]) -> None:
        """Count the measurements of a job."""
        for each in happened:
            measurement = replace(each, labels=label_values(each.labels))
            self._owners.made(measurement, self._clock())
            if self._counted.is_counter(measurement.metric):
                self._counted.count(measurement.metric, *measurement.labels, amount=measurement.amount)
            else:
                self._counted.observe(measurement.metric, measurement.amount, *measurement.labels)

    def requested(self, verb: str, resource: str, code: int, seconds: float) -> None:
        """Count a request to the API server."""
        self._counted.count("espalier_api_requests_total", verb, resource, str(code))
        self._counted.observe("espalier_api_request_seconds", seconds, verb)

    def failed(self, what: str) -> None:
        """Count a failure that is retried; `what` is one of a few fixed values."""
        self._counted.count("espalier_operator_errors_total", what)

    def ticked(self, plan: Plan, thought: float, took: float) -> None:
        """Count a tick of the scheduler: the seconds of planning, and of the whole tick."""
        self._counted.observe("espalier_scheduler_tick_seconds", thought, "plan")
        self._counted.observe("espalier_scheduler_tick_seconds", took, "all")
        self._counted.set("espalier_scheduler_last_tick_timestamp_seconds", self._clock())
        self._counted.set("espalier_scheduling_policy_ignored_wishes", len(plan.ignored))
        self._counted.set("espalier_scheduling_policy_fallback", bool(plan.fallback))
        for action in plan.actions:
            self._counted.count("espalier_scheduler_actions_total", type(action).__name__, action.reason)

    def asked(self, outcome: QuestionOutcome, seconds: float) -> None:
        """Count a question to a policy file, and the seconds that the plan waited for the answer."""
        self._counted.count("espalier_scheduling_policy_questions_total", outcome)
        self._counted.observe("espalier_scheduling_policy_answer_seconds", seconds)

    # ---- scraping

    def look(
        self,
        jobs: Iterable[LiveJob],
        snapshot: Snapshot | None,
        received_at: Mapping[str, float],
        misattributed: Mapping[str, int],
        unread: Mapping[str, int],
        shares: Sequence[Share] = (),
    ) -> None:
        """Compute the series of the current state for `text`; `jobs` and `snapshot` must be of the same moment.

        `received_at`: epoch seconds of the last delivery by a list or watch, by resource; `misattributed`: number of
        objects that claim a job that is not theirs, by resource; `unread`: number of jobs whose newest report is not
        read, by reason; `shares`: the policy's last decision.
        """
        now = self._clock()
        jobs = list(jobs)
        for measurement in self._owners.returned((job.owner for job in jobs), now):
            self._counted.begin(measurement.metric, *measurement.labels)
        for measurement in self._owners.gone(now):
            self._counted.forget(measurement.metric, *measurement.labels)
        series = self._chosen.limit(series_of(jobs, snapshot, now, shares), jobs)
        ages: dict[tuple[str, ...], float] = {(resource,): max(0.0, now - at) for resource, at in received_at.items()}
        forged: dict[tuple[str, ...], float] = {(resource,): count for resource, count in misattributed.items()}
        self._scraped.series = {
            **series,
            "espalier_watch_age_seconds": ages,
            "espalier_operator_misattributed_objects": forged,
            "espalier_operator_unread_reports": {(reason,): float(count) for reason, count in unread.items()},
        }

    def text(self, *, leads: bool) -> bytes:
        """Return all metrics in Prometheus' text format; slow with thousands of jobs, but safe in another thread."""
        self._counted.set("espalier_operator_leader", leads)
        return self._counted.text()


_Made = dict[tuple[str, tuple[str, ...]], Measurement]
"""The measurement that made each counted series, by metric and label values."""


class _Owners:
    """Counted series by namespace and queue.

    People choose both names, possibly a new one for each job. So series of namespaces and queues without jobs are
    dropped a while after the last job, long enough to be scraped. They return at zero with the next job, so that their
    next event is seen as a rise.
    """

    def __init__(self) -> None:
        self._series: dict[tuple[str, str], _Made] = {}
        self._seen_at: dict[tuple[str, str], float] = {}
        self._gone: dict[tuple[str, str], tuple[float, _Made]] = {}
        """Dropped series with the time of the drop, the oldest first."""

    def made(self, measurement: Measurement, now: float) -> None:
        """Record a series that exists now."""
        names = dict(zip(family(measurement.metric).labels, measurement.labels, strict=True))
        owner = (names.get("namespace", ""), names.get("queue", ""))
        if any(owner):
            self._series.setdefault(owner, {})[measurement.metric, measurement.labels] = measurement
            self._seen_at[owner] = now

    def returned(self, owners: Iterable[Owner], now: float) -> Iterator[Measurement]:
        """Yield the dropped series to begin again, where these `owners` have jobs now."""
        for owner in owners:
            namespace, queue = label_values((owner.namespace, owner.queue))
            for key in ((namespace, queue), ("", queue)):
                if key in self._seen_at:
                    self._seen_at[key] = now
                _, series = self._gone.pop(key, (now, {}))
                for measurement in series.values():
                    self.made(measurement, now)
                    yield measurement

    def gone(self, now: float) -> Iterator[Measurement]:
        """Yield the series to drop, whose namespace and queue have had no job for a while."""
        for key in [key for key, seen_at in self._seen_at.items() if now - seen_at > KEPT_SECONDS]:
            del self._seen_at[key]
            series = self._series.pop(key)
            _, before = self._gone.pop(key, (now, {}))
            self._gone[key] = (now, before | series)
            yield from series.values()
        over = len(self._gone) - MOST_REMEMBERED
        for place, (key, (at, _)) in enumerate(list(self._gone.items())):
            if place < over or now - at > REMEMBERED_SECONDS:
                del self._gone[key]


class _ChosenNames:
    """Names that each job has chosen for its figures and actions.

    Prometheus keeps each name as a series for weeks, so a job that chose new ones for each report would fill it. The
    first names count; series with further names are left out.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, str, float], set[str]] = {}

    def limit(self, series: Series, jobs: Iterable[LiveJob]) -> Series:
        """Return `series` of all `jobs` without names beyond the first `MOST_NAMES`."""
        before, self._known = self._known, {}
        made_at = {label_values((job.owner.namespace, job.name)): job.owner.created_at for job in jobs}
        limited = dict(series)
        for metric, most in MOST_NAMES.items():
            for (namespace, name), at in made_at.items():
                key = (metric, namespace, name, at)
                self._known[key] = before.get(key, set())
            limited[metric] = {}
            for labels, value in series.get(metric, {}).items():
                known = self._known[metric, labels[0], labels[1], made_at[labels[0], labels[1]]]
                if labels[2] in known or len(known) < most:
                    known.add(labels[2])
                    limited[metric][labels] = value
        return limited


class _Scraped(Collector):
    """Returns the series computed for this scrape."""

    def __init__(self) -> None:
        self.series: Series = {}

    def describe(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """Return the families without values."""
        return self._families({})

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """Return the families with values."""
        return self._families(self.series)

    def _families(self, series: Series) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        for name in SCRAPED:
            about = family(name)
            made: GaugeMetricFamily | CounterMetricFamily
            if about.type is MetricType.COUNTER:
                made = CounterMetricFamily(name, about.help, labels=about.labels)
            else:
                made = GaugeMetricFamily(name, about.help, labels=about.labels)
            for labels, value in series.get(name, {}).items():
                made.add_metric(labels, value)
            yield made
