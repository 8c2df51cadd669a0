"""The alerts, each with its condition, duration and texts; and the rule file for Prometheus.

docs/reference/alerts.md explains each alert, its remedies and its numbers.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from espalier_monitoring.boards import risen


class Severity(StrEnum):
    """The urgency of an alert."""

    CRITICAL = "critical"
    """Immediately: nothing is scheduled."""
    WARNING = "warning"
    """The same day: work is lost or waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One alert. Its texts may refer to labels as `{{ $labels.x }}` and to the value as `{{ $value }}`."""

    name: str
    expression: str
    lasts: str = "0m"
    """Time for which the expression must hold, in Prometheus' notation."""
    severity: Severity
    summary: str
    description: str


_JOB: Final = "by (namespace, job_name)"
_WRITTEN: Final = '{stage="written"}'
_WRITTEN_IN_TIME: Final = '{stage="written", le="2.5"}'
_FALLBACKS: Final = risen("espalier_advice_problems_total", "", "30m")
_BAD_CODES: Final = '{code=~"0|429|5.."}'

ALERTS: Final = (
    Alert(
        name="EspalierOperatorSilent",
        expression="absent(espalier_operator_leader == 1)",
        lasts="5m",
        severity=Severity.CRITICAL,
        summary="No operator is active",
        description="Prometheus has scraped no active operator for five minutes. Running jobs continue, but nothing "
        "is started, lent, taken back or ended.",
    ),
    Alert(
        name="EspalierTickOld",
        expression="time() - espalier_scheduler_last_tick_timestamp_seconds > 90 and espalier_operator_leader == 1",
        lasts="2m",
        severity=Severity.CRITICAL,
        summary="The scheduler is stuck",
        description="The last tick of {{ $labels.instance }} ended {{ $value | humanizeDuration }} ago; the scheduler "
        "ticks at least every 30 s.",
    ),
    Alert(
        name="EspalierApiErrors",
        expression=f"sum by (verb, resource) (rate(espalier_api_requests_total{_BAD_CODES}[5m])) "
        "/ sum by (verb, resource) (rate(espalier_api_requests_total[5m])) > 0.1",
        lasts="10m",
        severity=Severity.WARNING,
        summary="Requests of the operator to the API server fail",
        description="{{ $value | humanizePercentage }} of the requests to {{ $labels.verb }} {{ $labels.resource }} "
        "got no answer, or an answer that asks for a retry.",
    ),
    Alert(
        name="EspalierWritesFail",
        expression='sum by (error) (rate(espalier_operator_errors_total{error=~"status|objects"}[5m])) > 0',
        lasts="10m",
        severity=Severity.CRITICAL,
        summary="Writing {{ $labels.error }} of jobs fails",
        description="For ten minutes, the operator has failed to write {{ $labels.error }} of at least one job. Its "
        "decisions do not reach that job.",
    ),
    Alert(
        name="EspalierWatchStale",
        expression="max by (resource) (espalier_watch_age_seconds) > 900",
        lasts="2m",
        severity=Severity.WARNING,
        summary="The operator receives no updates of {{ $labels.resource }}",
        description="Neither a list nor a watch of {{ $labels.resource }} has returned anything for "
        "{{ $value | humanizeDuration }}. The operator lists every resource every five minutes.",
    ),
    Alert(
        name="EspalierPolicyFallsBack",
        expression="avg_over_time(espalier_scheduling_policy_fallback[10m]) > 0.5 and espalier_operator_leader == 1",
        lasts="5m",
        severity=Severity.WARNING,
        summary="The scheduling policy does not decide",
        description="In {{ $value | humanizePercentage }} of the last ten minutes, fair decided, because the policy "
        "raised an exception, or learned had no answer of its policy file. The operator's log says which.",
    ),
    Alert(
        name="EspalierJobWaits",
        expression="max by (namespace, job_name, reason) (espalier_job_waiting_seconds) > 3600",
        lasts="5m",
        severity=Severity.WARNING,
        summary="Job {{ $labels.namespace }}/{{ $labels.job_name }} waits: {{ $labels.reason }}",
        description="The job has waited for its base GPUs for {{ $value | humanizeDuration }}, because of "
        "{{ $labels.reason }}. For details: `espalier explain {{ $labels.job_name }} -n {{ $labels.namespace }}`.",
    ),
    Alert(
        name="EspalierNodeFailsJobs",
        expression="max by (node) (espalier_node_failed_jobs) >= 2",
        lasts="1m",
        severity=Severity.WARNING,
        summary="Node {{ $labels.node }} fails the workers of jobs",
        description="The node refused or ended workers of {{ $value | humanize }} jobs, or they failed there at start "
        "and ran elsewhere. Jobs avoid its GPUs. `espalier top` shows the last cause.",
    ),
    Alert(
        name="EspalierReclaimsForced",
        expression="sum by (namespace, queue, reason) ("
        + risen("espalier_reclaims_total", '{outcome="forced"}', "30m")
        + ") > 0",
        severity=Severity.WARNING,
        summary="Workers in {{ $labels.namespace }} were ended by force",
        description="In half an hour, {{ $value | humanize }} reclaims of GPUs lent to queue {{ $labels.queue }} were "
        "forced: the jobs did not give the GPUs back within their notice.",
    ),
    Alert(
        name="EspalierAdviceFallsBack",
        expression=f"sum by (namespace, queue) ({_FALLBACKS}) / sum by (namespace, queue) ("
        + risen("espalier_adaptations_total", '{source="agent"}', "30m")
        + f" or {_FALLBACKS}) > 0.2",
        severity=Severity.WARNING,
        summary="Jobs in {{ $labels.namespace }} get no advice from the agent",
        description="In half an hour, {{ $value | humanizePercentage }} of the consultations were decided by a "
        "fallback: the agent did not answer in time, its advice was not legal, or its policy knows none of the "
        "allowed actions.",
    ),
    Alert(
        name="EspalierSignalsSlow",
        expression=f"1 - sum (increase(espalier_signal_seconds_bucket{_WRITTEN_IN_TIME}[1h])) "
        f"/ sum (increase(espalier_signal_seconds_count{_WRITTEN}[1h])) > 0.05 "
        f"and sum (increase(espalier_signal_seconds_count{_WRITTEN}[1h])) > 20",
        lasts="10m",
        severity=Severity.WARNING,
        summary="Jobs learn late that GPUs are free for them",
        description="In the last hour, {{ $value | humanizePercentage }} of the grants took more than 2.5 s from the "
        "start of an extra worker to the status of the job.",
    ),
    Alert(
        name="EspalierAgentSlow",
        expression="histogram_quantile(0.99, sum by (le) (rate(espalier_agent_advice_seconds_bucket[10m]))) > 1",
        lasts="10m",
        severity=Severity.WARNING,
        summary="The agent answers slowly",
        description="One consultation in a hundred takes {{ $value | humanizeDuration }} or more. By default, a job "
        "waits five seconds in total.",
    ),
    Alert(
        name="EspalierRecordsLost",
        expression="sum by (error) (" + risen("espalier_agent_records_lost_total", "", "30m") + ") > 0",
        severity=Severity.WARNING,
        summary="The agent loses records that policies learn from: {{ $labels.error }}",
        description="In half an hour, the agent could not store {{ $value | humanize }} decisions, outcomes or answers "
        "of a shadow policy. It still gives advice, but no policy can learn from the lost records.",
    ),
    Alert(
        name="EspalierBudgetBurnt",
        expression=f"max {_JOB} (increase(espalier_job_time_used_seconds_total[15m])) > 300 "
        f"and max {_JOB} (increase(espalier_job_steps_total[15m])) == 0",
        lasts="5m",
        severity=Severity.WARNING,
        summary="Job {{ $labels.namespace }}/{{ $labels.job_name }} uses its budget without a step",
        description="In a quarter of an hour, the job used {{ $value | humanizeDuration }} of its time budget and took "
        "no optimizer step.",
    ),
)
"""All alerts."""

RUNBOOKS: Final = "docs/reference/alerts.md"
"""The page with the remedies; it has a heading for each alert, under the alert's name."""

_HEAD: Final = "# Written by `make dashboards` from monitoring/espalier_monitoring/alerts.py; change them there.\n"


def rules_text() -> str:
    """Return the rule file, in YAML whose texts are written as JSON, so that no part of them is read as YAML."""
    lines = [_HEAD + "groups:", "  - name: espalier", "    rules:"]
    for alert in ALERTS:
        lines += [
            f"      - alert: {alert.name}",
            f"        expr: {_text(alert.expression)}",
            f"        for: {alert.lasts}",
            "        labels:",
            f"          severity: {alert.severity.value}",
            "        annotations:",
            *(f"          {name}: {_text(value)}" for name, value in says(alert).items()),
        ]
    return "\n".join(lines) + "\n"


def says(alert: Alert) -> dict[str, str]:
    """Return the texts of an alert."""
    return {
        "summary": alert.summary,
        "description": alert.description,
        "runbook_url": f"{RUNBOOKS}#{alert.name.lower()}",
    }


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)
