"""`espalier run --policy optimus`: a real job is lent a GPU, measures what it brings, and policies read that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from espalier_api.documents import read_document
from espalier_api.report import Report
from espalier_api.throughput import step_times
from espalier_operator.facts import JobFacts, Terms
from espalier_operator.outlooks import MeasuredOutlook

JOB = """\
apiVersion: espalier.dev/v1alpha1
kind: AdaptiveTrainingJob
metadata: {name: job}
spec:
  timeBudgetSeconds: 30
  minReplicas: 1
  maxReplicas: 2
  preemption: {noticeSeconds: 1, cooldownSeconds: 0.2, minRuntimeSeconds: 0.2}
  adaptation: {mode: "Off"}
  training: {elasticBatch: keepGlobal}
"""


def test_a_job_under_optimus_measures_what_the_policy_needs(espalier: Any, events_of: Any, tmp_path: Path) -> None:
    job, output = tmp_path / "job.yaml", tmp_path / "out"
    job.write_text(JOB)
    code, _, err = espalier("run", job, "--policy", "optimus", "--gpus", "2", "--output", output).finish()
    assert code == 0, err
    lent = [event["allocation"]["replicas"] for event in events_of(output, "AllocationChanged")]
    assert lent[:2] == [1, 2]
    measured = read_document(output / "report.json", Report).measurements
    assert {speed.workers for speed in measured.speeds} == {1, 2}
    terms = Terms(min_replicas=1, max_replicas=2, time_budget_seconds=30, trains_together=True)
    facts = JobFacts(key="default/job", terms=terms, submitted_at=0.0, speeds=step_times(measured))
    outlook = MeasuredOutlook(job=facts, gpus_per_node=2)
    for speed in measured.speeds:
        assert outlook.step_seconds(speed.workers) == pytest.approx(speed.step_seconds)
