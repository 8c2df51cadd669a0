"""Each alert fires when it should and says what it should; and stays silent when it should. By promtool."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from espalier_core.types.status import JobStatus
from espalier_monitoring.alerts import ALERTS, rules_text, says
from espalier_operator.kube.metrics.exporter import OperatorMetrics
from espalier_operator.kube.metrics.measurements import Measurement, Owner
from espalier_operator.kube.metrics.series import LiveJob
from espalier_operator.model import Snapshot

BY_NAME = {alert.name: alert for alert in ALERTS}
OPERATOR = 'instance="op:8080", pod="op"'
JOB = 'namespace="team", job_name="one"'
QUEUE = 'namespace="team", queue="default"'
RECLAIMS = f'espalier_reclaims_total{{{QUEUE}, reason="NeededByOtherJob"'
DECISIONS = f'espalier_adaptations_total{{{QUEUE}, action="Deepen", result="Grown"'
ADVISED = f'{DECISIONS}, source="agent"}}'
FELL_BACK = f'{DECISIONS}, source="fallback"}}'
AWAY = f'espalier_advice_problems_total{{{QUEUE}, reason="AgentUnavailable"}}'
UNKNOWN = f'espalier_advice_problems_total{{{QUEUE}, reason="ActionsUnknown"}}'
ADVICE = "espalier_agent_advice_seconds_bucket"
SIGNALS = "espalier_signal_seconds"
RECORDS_LOST = "espalier_agent_records_lost_total"


@dataclass(frozen=True)
class Case:
    """An alert, what happens, its series of one sample a minute, and when to look."""

    alert: str
    about: str
    series: dict[str, str]
    at: str
    labels: dict[str, str] | None = None
    """Of the alert that fires; None where none does. They are in its summary and description, too."""
    words: dict[str, str] = field(default_factory=dict)
    """What is there in place of each other `{{ }}`."""


def requests(verb: str, by_code: dict[str, str]) -> dict[str, str]:
    """Return how often the API server was asked about pods, by the code of its answer."""
    series = "espalier_api_requests_total"
    return {f'{series}{{verb="{verb}", resource="pods", code="{code}"}}': counts for code, counts in by_code.items()}


CASES = (
    Case(
        "EspalierOperatorSilent",
        "all replicas wait",
        {f"espalier_operator_leader{{{OPERATOR}}}": "0x20"},
        at="6m",
        labels={},
    ),
    Case("EspalierOperatorSilent", "there is none", {"up": "0x20"}, at="6m", labels={}),
    Case(
        "EspalierOperatorSilent",
        "another took over within minutes",
        {'espalier_operator_leader{pod="a"}': "1x6 stale", 'espalier_operator_leader{pod="b"}': "0x9 1x10"},
        at="12m",
    ),
    Case(
        "EspalierTickOld",
        "the leader is stuck",
        {
            f"espalier_scheduler_last_tick_timestamp_seconds{{{OPERATOR}}}": "0x20",
            f"espalier_operator_leader{{{OPERATOR}}}": "1x20",
        },
        at="5m",
        labels={"instance": "op:8080", "pod": "op"},
        words={"$value | humanizeDuration": "5m 0s"},
    ),
    Case(
        "EspalierTickOld",
        "one ticks, another waits and has never ticked",
        {
            'espalier_scheduler_last_tick_timestamp_seconds{pod="a"}': "0+60x20",
            'espalier_operator_leader{pod="a"}': "1x20",
            'espalier_scheduler_last_tick_timestamp_seconds{pod="b"}': "0x20",
            'espalier_operator_leader{pod="b"}': "0x20",
        },
        at="15m",
    ),
    Case(
        "EspalierApiErrors",
        "a fifth fails",
        requests("patch", {"200": "0+80x40", "503": "0+15x40", "0": "0+5x40"}),
        at="20m",
        labels={"verb": "patch", "resource": "pods"},
        words={"$value | humanizePercentage": "20%"},
    ),
    Case(
        "EspalierApiErrors",
        "conflicts and what is gone are ordinary",
        requests("patch", {"200": "0+50x40", "404": "0+30x40", "409": "0+30x40", "500": "0+1x40"}),
        at="20m",
    ),
    Case(
        "EspalierApiErrors",
        "the API server is started again",
        requests("list", {"200": "0+10x40", "0": "0x10 0+40x3 120x20"}),
        at="15m",
    ),
    Case(
        "EspalierWritesFail",
        "statuses cannot be written",
        {'espalier_operator_errors_total{error="status"}': "_x5 1+1x40"},
        at="20m",
        labels={"error": "status"},
    ),
    Case(
        "EspalierWritesFail",
        "a few times, and Events all the time",
        {
            'espalier_operator_errors_total{error="status"}': "0x5 0+1x3 4x40",
            'espalier_operator_errors_total{error="event"}': "0+1x40",
        },
        at="12m",
    ),
    Case(
        "EspalierWatchStale",
        "nothing of nodes for twenty minutes",
        {
            'espalier_watch_age_seconds{resource="nodes"}': "0+60x40",
            'espalier_watch_age_seconds{resource="pods"}': "3x40",
        },
        at="20m",
        labels={"resource": "nodes"},
        words={"$value | humanizeDuration": "20m 0s"},
    ),
    Case(
        "EspalierWatchStale",
        "a quiet cluster is heard of by lists",
        {'espalier_watch_age_seconds{resource="nodes"}': "0+60x5 0+60x5 0+60x5 0+60x5"},
        at="23m",
    ),
    Case(
        "EspalierPolicyFallsBack",
        "the policy file does not answer",
        {
            f"espalier_scheduling_policy_fallback{{{OPERATOR}}}": "1x30",
            f"espalier_operator_leader{{{OPERATOR}}}": "1x30",
        },
        at="20m",
        labels={"instance": "op:8080", "pod": "op"},
        words={"$value | humanizePercentage": "100%"},
    ),
    Case(
        "EspalierPolicyFallsBack",
        "the policy server was restarted",
        {
            f"espalier_scheduling_policy_fallback{{{OPERATOR}}}": "0x9 1x3 0x30",
            f"espalier_operator_leader{{{OPERATOR}}}": "1x50",
        },
        at="16m",
    ),
    Case(
        "EspalierJobWaits",
        "seventy minutes",
        {f'espalier_job_waiting_seconds{{{JOB}, reason="NoFreeGPU"}}': "3000+60x30"},
        at="20m",
        labels={"namespace": "team", "job_name": "one", "reason": "NoFreeGPU"},
        words={"$value | humanizeDuration": "1h 10m 0s"},
    ),
    Case(
        "EspalierJobWaits",
        "not for long, or no more",
        {
            f'espalier_job_waiting_seconds{{{JOB}, reason="NoFreeGPU"}}': "0+60x30",
            'espalier_job_waiting_seconds{namespace="team", job_name="two", reason="NoFreeGPU"}': "9000+60x4 stale",
        },
        at="20m",
    ),
    Case(
        "EspalierNodeFailsJobs",
        "two jobs",
        {'espalier_node_failed_jobs{node="n1"}': "2x30"},
        at="10m",
        labels={"node": "n1"},
        words={"$value | humanize": "2"},
    ),
    Case("EspalierNodeFailsJobs", "it was repaired", {'espalier_node_failed_jobs{node="n1"}': "3x5 stale"}, at="12m"),
    Case(
        "EspalierReclaimsForced",
        "the first of its series",
        {f'{RECLAIMS}, outcome="forced"}}': "_x5 1x90"},
        at="10m",
        labels={"namespace": "team", "queue": "default", "reason": "NeededByOtherJob"},
        words={"$value | humanize": "1"},
    ),
    Case(
        "EspalierReclaimsForced",
        "acknowledged ones, and forced ones of the day before",
        {f'{RECLAIMS}, outcome="acknowledged"}}': "0+1x90", f'{RECLAIMS}, outcome="forced"}}': "1x90"},
        at="80m",
    ),
    Case(
        "EspalierReclaimsForced",
        "old ones, after nothing was scraped for forty minutes",
        {f'{RECLAIMS}, outcome="forced"}}': "4x20 _x40 4x90"},
        at="65m",
    ),
    Case(
        "EspalierAdviceFallsBack",
        "one of four, all for the first time",
        {ADVISED: "_x9 3x90", FELL_BACK: "_x9 1x90", AWAY: "_x9 1x90"},
        at="20m",
        labels={"namespace": "team", "queue": "default"},
        words={"$value | humanizePercentage": "25%"},
    ),
    Case(
        "EspalierAdviceFallsBack",
        "two of eight, beside decisions of a rule and measurements of steps, which ask nobody",
        {
            ADVISED: "_x9 6x90",
            FELL_BACK: "_x9 2x90",
            AWAY: "_x9 1x90",
            UNKNOWN: "_x9 1x90",
            f'{DECISIONS}, source="reclaim"}}': "_x9 9x90",
            f'{DECISIONS}, source="measurement"}}': "_x9 9x90",
        },
        at="20m",
        labels={"namespace": "team", "queue": "default"},
        words={"$value | humanizePercentage": "25%"},
    ),
    Case(
        "EspalierAdviceFallsBack",
        "all, since the agent came to an end",
        {ADVISED: "5x90", FELL_BACK: "_x60 2x90", AWAY: "_x60 2x90"},
        at="70m",
        labels={"namespace": "team", "queue": "default"},
        words={"$value | humanizePercentage": "100%"},
    ),
    Case(
        "EspalierAdviceFallsBack",
        "one of ten",
        {ADVISED: "_x9 9x90", FELL_BACK: "_x9 1x90", AWAY: "_x9 1x90"},
        at="20m",
    ),
    Case("EspalierAdviceFallsBack", "there is no agent, by choice", {FELL_BACK: "_x9 5x90"}, at="20m"),
    Case(
        "EspalierAdviceFallsBack",
        "nothing was asked for an hour, after nothing but fallbacks",
        {ADVISED: "0x90", FELL_BACK: "7x90", AWAY: "7x90"},
        at="80m",
    ),
    Case(
        "EspalierSignalsSlow",
        "a tenth comes late",
        {
            f'{SIGNALS}_bucket{{stage="written", le="2.5"}}': "0+9x90",
            f'{SIGNALS}_count{{stage="written"}}': "0+10x90",
            f'{SIGNALS}_bucket{{stage="acknowledged", le="2.5"}}': "0+10x90",
            f'{SIGNALS}_count{{stage="acknowledged"}}': "0+10x90",
        },
        at="80m",
        labels={},
        words={"$value | humanizePercentage": "10%"},
    ),
    Case(
        "EspalierSignalsSlow",
        "trainers take long steps, the operator does not",
        {
            f'{SIGNALS}_bucket{{stage="written", le="2.5"}}': "0+10x90",
            f'{SIGNALS}_count{{stage="written"}}': "0+10x90",
            f'{SIGNALS}_bucket{{stage="acknowledged", le="2.5"}}': "0x90",
            f'{SIGNALS}_count{{stage="acknowledged"}}': "0+10x90",
        },
        at="80m",
    ),
    Case(
        "EspalierSignalsSlow",
        "one of two in a quiet hour",
        {
            f'{SIGNALS}_bucket{{stage="written", le="2.5"}}': "0x20 1x90",
            f'{SIGNALS}_count{{stage="written"}}': "0x20 2x90",
        },
        at="60m",
    ),
    Case(
        "EspalierAgentSlow",
        "two in a hundred take longest of all",
        {
            f'{ADVICE}{{le="0.005"}}': "0+98x40",
            f'{ADVICE}{{le="2.5"}}': "0+98x40",
            f'{ADVICE}{{le="+Inf"}}': "0+100x40",
        },
        at="25m",
        labels={},
        words={"$value | humanizeDuration": "2.5s"},
    ),
    Case(
        "EspalierAgentSlow",
        "one in a thousand",
        {f'{ADVICE}{{le="0.005"}}': "0+999x40", f'{ADVICE}{{le="+Inf"}}': "0+1000x40"},
        at="25m",
    ),
    Case(
        "EspalierRecordsLost",
        "the disks of two replicas are full, the first of their series",
        {
            f'{RECORDS_LOST}{{pod="a", error="Full"}}': "_x5 3x90",
            f'{RECORDS_LOST}{{pod="b", error="Full"}}': "_x7 1x90",
            'espalier_agent_records_total{pod="a", record="decision"}': "0+9x90",
        },
        at="10m",
        labels={"error": "Full"},
        words={"$value | humanize": "4"},
    ),
    Case(
        "EspalierRecordsLost",
        "a shadow cannot answer, and the store was locked the day before",
        {
            f'{RECORDS_LOST}{{pod="a", error="Locked"}}': "7x90",
            f'{RECORDS_LOST}{{pod="a", error="NotAsked"}}': "7x60 8x30",
        },
        at="80m",
        labels={"error": "NotAsked"},
        words={"$value | humanize": "1"},
    ),
    Case(
        "EspalierRecordsLost",
        "all is kept, and what was lost was lost the day before",
        {
            f'{RECORDS_LOST}{{pod="a", error="Damaged"}}': "1x90",
            'espalier_agent_records_total{pod="a", record="decision"}': "0+9x90",
        },
        at="80m",
    ),
    Case(
        "EspalierRecordsLost",
        "old ones, after nothing was scraped for forty minutes",
        {f'{RECORDS_LOST}{{pod="a", error="Full"}}': "4x20 _x40 4x90"},
        at="65m",
    ),
    Case(
        "EspalierRecordsLost",
        "what is lost no more is silent after half an hour",
        {f'{RECORDS_LOST}{{pod="a", error="Full"}}': "_x5 3x90"},
        at="70m",
    ),
    Case(
        "EspalierBudgetBurnt",
        "no step",
        {f"espalier_job_time_used_seconds_total{{{JOB}}}": "0+60x60", f"espalier_job_steps_total{{{JOB}}}": "100x60"},
        at="25m",
        labels={"namespace": "team", "job_name": "one"},
        words={"$value | humanizeDuration": "15m 0s"},
    ),
    Case(
        "EspalierBudgetBurnt",
        "slow steps, and a pause that costs nothing",
        {
            f"espalier_job_time_used_seconds_total{{{JOB}}}": "0+60x60",
            f"espalier_job_steps_total{{{JOB}}}": "0x9 1x9 2x9 3x9 4x9",
            'espalier_job_time_used_seconds_total{namespace="team", job_name="two"}': "500x60",
            'espalier_job_steps_total{namespace="team", job_name="two"}': "100x60",
        },
        at="40m",
    ),
    Case(
        "EspalierBudgetBurnt",
        "a program that tells no steps, beside a job that takes some",
        {
            f"espalier_job_time_used_seconds_total{{{JOB}}}": "0+60x60",
            'espalier_job_time_used_seconds_total{namespace="team", job_name="two"}': "0+60x60",
            'espalier_job_steps_total{namespace="team", job_name="two"}': "0+100x60",
        },
        at="25m",
    ),
)


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the rule file."""
    path = tmp_path_factory.mktemp("rules") / "espalier.yaml"
    path.write_text(rules_text())
    return path


def test_the_rules_are_rules(promtool: Path, rules: Path) -> None:
    result = subprocess.run([promtool, "check", "rules", rules], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"{len(ALERTS)} rules found" in result.stdout


def test_each_alert_has_a_case_that_fires_and_one_that_does_not() -> None:
    for fires in (True, False):
        assert {case.alert for case in CASES if (case.labels is not None) is fires} == set(BY_NAME)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.alert}: {case.about}")
def test_it_fires_when_it_should(case: Case, promtool: Path, rules: Path, tmp_path: Path) -> None:
    alert = BY_NAME[case.alert]
    expected = []
    if case.labels is not None:
        said = says(alert)
        labelled = {f"$labels.{name}": value for name, value in case.labels.items()}
        for word, value in (labelled | case.words).items():
            said = {name: text.replace(f"{{{{ {word} }}}}", value) for name, text in said.items()}
        labels = {**case.labels, "severity": alert.severity.value}
        expected = [{"exp_labels": labels, "exp_annotations": said}]
    expects = {"alert_rule_test": [{"alertname": case.alert, "eval_time": case.at, "exp_alerts": expected}]}
    check(promtool, rules, tmp_path, case.series, expects)


@pytest.mark.parametrize("pause", [20, 45, 80, 104, 106, 134, 137, 200])
def test_one_forced_reclaim_fires_however_long_the_operator_saw_no_job(
    pause: int, promtool: Path, rules: Path, tmp_path: Path
) -> None:
    """It forgets what it counted in a namespace without jobs; the next event is a rise, or the first again."""
    now = 0.0
    metrics = OperatorMetrics(lambda: now)
    owner = Owner(namespace="team", queue="default", base_gpus=1, gpus_per_worker=1, created_at=0.0)
    job = LiveJob(owner=owner, name="one", status=JobStatus(), facts=None)
    values, again = [], 5 + pause
    for minute in range(again + 10):
        now = 60.0 * minute
        if minute in (3, again + 3):
            metrics.add([Measurement("espalier_reclaims_total", ("team", "default", "NeededByOtherJob", "forced"))])
        metrics.look([job] if minute < 5 or minute >= again else [], Snapshot(taken_at=now), {}, {}, {})
        values.append(reclaims(metrics))
    assert None in values[5:again], "it was forgotten"
    series = {f'{RECLAIMS}, outcome="forced"}}': " ".join("_" if value is None else str(value) for value in values)}
    firing = 'count(ALERTS{alertname="EspalierReclaimsForced", alertstate="firing"})'
    at = {f"{again + 2}m": [], f"{again + 5}m": [1]}
    tests = [
        {"expr": firing, "eval_time": time, "exp_samples": [{"labels": "{}", "value": value} for value in found]}
        for time, found in at.items()
    ]
    check(promtool, rules, tmp_path, series, {"promql_expr_test": tests})


def reclaims(metrics: OperatorMetrics) -> float | None:
    """Return how many forced ones are counted in a scrape; None without such a series."""
    for family in text_string_to_metric_families(metrics.text(leads=True).decode()):
        for sample in family.samples:
            if sample.name == "espalier_reclaims_total":
                return sample.value
    return None


def check(promtool: Path, rules: Path, folder: Path, series: dict[str, str], expects: dict[str, object]) -> None:
    """Assert that the rules come to what is expected of `series` of one sample a minute."""
    given = [{"series": name, "values": values} for name, values in series.items()]
    test = {"interval": "1m", "input_series": given, **expects}
    path = folder / "test.json"
    # JSON is YAML.
    path.write_text(json.dumps({"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": [test]}))
    result = subprocess.run([promtool, "test", "rules", path], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
