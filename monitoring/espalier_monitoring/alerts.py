"""The alerts: what each looks for, for how long, and what it says.

What to do is in docs/alerts.md, as are the reasons for the numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from espalier_monitoring.promql import risen


class Severity(StrEnum):
    """How soon a person is needed."""

    CRITICAL = "critical"
    """Now: nothing is scheduled."""
    WARNING = "warning"
    """Today: work is lost or waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One alert. Texts may name labels as `{{ $labels.x }}` and the value as `{{ $value }}`."""

    name: str
    expression: str
    lasts: str = "0m"
    """How long it must hold, in Prometheus' notation."""
    severity: Severity
    summary: str
    description: str


_JOB: Final = "by (namespace, job_name)"
_BAD_CODES: Final = '{code=~"0|429|5.."}'

ALERTS: Final = (
    Alert(
        name="EspalierOperatorSilent",
        expression="absent(espalier_operator_leader == 1)",
        lasts="5m",
        severity=Severity.CRITICAL,
        summary="No operator acts",
        description="No operator that leads was scraped for five minutes: jobs that train go on, but nothing is "
        "started, lent, taken back or ended.",
    ),
    Alert(
        name="EspalierTickOld",
        expression="time() - espalier_scheduler_last_tick_timestamp_seconds > 90 and espalier_operator_leader == 1",
        lasts="2m",
        severity=Severity.CRITICAL,
        summary="The scheduler is stuck",
        description="The last tick of {{ $labels.instance }} ended {{ $value | humanizeDuration }} ago; there is one "
        "at least every 30 s.",
    ),
    Alert(
        name="EspalierApiErrors",
        expression=f"sum by (verb, resource) (rate(espalier_api_requests_total{_BAD_CODES}[5m])) "
        "/ sum by (verb, resource) (rate(espalier_api_requests_total[5m])) > 0.1",
        lasts="10m",
        severity=Severity.WARNING,
        summary="The API server does not do what it is asked",
        description="{{ $value | humanizePercentage }} of the requests to {{ $labels.verb }} {{ $labels.resource }} "
        "got no answer, or one that says to try again.",
    ),
    Alert(
        name="EspalierWritesFail",
        expression='sum by (error) (rate(espalier_operator_errors_total{error=~"status|objects"}[5m])) > 0',
        lasts="10m",
        severity=Severity.CRITICAL,
        summary="Writing {{ $labels.error }} of jobs fails",
        description="For ten minutes the operator has failed to write {{ $labels.error }} of at least one job; what it "
        "decides does not reach that job.",
    ),
    Alert(
        name="EspalierWatchStale",
        expression="max by (resource) (espalier_watch_age_seconds) > 900",
        lasts="2m",
        severity=Severity.WARNING,
        summary="The operator has heard nothing of {{ $labels.resource }}",
        description="Neither a list nor a watch of {{ $labels.resource }} has brought anything for "
        "{{ $value | humanizeDuration }}; all is listed anew every five minutes.",
    ),
    Alert(
        name="EspalierJobWaits",
        expression='max by (namespace, job_name, reason) (espalier_job_waiting_seconds{reason!="Suspended"}) > 3600',
        lasts="5m",
        severity=Severity.WARNING,
        summary="Job {{ $labels.namespace }}/{{ $labels.job_name }} waits: {{ $labels.reason }}",
        description="It has waited for its first GPUs for {{ $value | humanizeDuration }}, because of "
        "{{ $labels.reason }}; `espalier explain {{ $labels.job_name }} -n {{ $labels.namespace }}` says more.",
    ),
    Alert(
        name="EspalierReclaimsForced",
        expression="sum by (namespace, queue, reason) ("
        + risen("espalier_reclaims_total", '{outcome="forced"}', "30m")
        + ") > 0",
        severity=Severity.WARNING,
        summary="Workers in {{ $labels.namespace }} were ended by force",
        description="{{ $value | humanize }} reclaims of GPUs lent to queue {{ $labels.queue }} were forced in half an "
        "hour: the jobs did not give them back within their notice.",
    ),
    Alert(
        name="EspalierAdviceFallsBack",
        expression="sum by (namespace, queue) ("
        + risen("espalier_adaptations_total", '{source="fallback"}', "30m")
        + ") / sum by (namespace, queue) ("
        + risen("espalier_adaptations_total", '{source!="reclaim"}', "30m")
        + ") > 0.2",
        severity=Severity.WARNING,
        summary="Jobs in {{ $labels.namespace }} do without the agent",
        description="{{ $value | humanizePercentage }} of the consultations in half an hour were decided by a "
        "fallback: the agent did not answer in time, or what it said was not legal.",
    ),
    Alert(
        name="EspalierAgentSlow",
        expression="histogram_quantile(0.99, sum by (le) (rate(espalier_agent_advice_seconds_bucket[10m]))) > 1",
        lasts="10m",
        severity=Severity.WARNING,
        summary="The agent takes long to answer",
        description="One consultation in a hundred takes {{ $value | humanizeDuration }} and more; by default a job "
        "waits five seconds in all.",
    ),
    Alert(
        name="EspalierRecordsLost",
        expression="sum by (error) (" + risen("espalier_agent_records_lost_total", "", "30m") + ") > 0",
        severity=Severity.WARNING,
        summary="The agent does not keep what it is to learn from: {{ $labels.error }}",
        description="Decisions, outcomes or answers of a shadow that were lost in half an hour: "
        "{{ $value | humanize }}. Advice goes on, but a later policy cannot learn from them.",
    ),
    Alert(
        name="EspalierBudgetBurnt",
        expression=f"max {_JOB} (increase(espalier_job_time_used_seconds_total[15m])) > 300 "
        f"and max {_JOB} (increase(espalier_job_steps_total[15m])) == 0",
        lasts="5m",
        severity=Severity.WARNING,
        summary="Job {{ $labels.namespace }}/{{ $labels.job_name }} uses its budget without a step",
        description="In a quarter of an hour it used {{ $value | humanizeDuration }} of its time budget and took no "
        "optimizer step.",
    ),
)
"""All of them."""
