"""`espalier run --policy optimus`: a real job is lent a GPU, measures what it brings, and policies read that."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from espalier_core.estimates.goodput import step_times
from espalier_core.files.documents import read_document
from espalier_core.types.measurements import Measurements
from espalier_core.types.report import Report
from espalier_operator.model import JobFacts, JobTerms
from espalier_operator.policies.speed_models import MeasuredSpeedModel

JOB = """\
apiVersion: espalier.dev/v1alpha1
kind: AdaptiveTrainingJob
metadata: {name: job}
spec:
  timeBudgetSeconds: 300
  minReplicas: 1
  maxReplicas: 2
  preemption: {noticeSeconds: 1, cooldownSeconds: 0.2, minRuntimeSeconds: 0.2}
  adaptation: {mode: "Off"}
  training: {elasticBatch: keepGlobal}
"""


def test_a_job_under_optimus_measures_what_the_policy_needs(
    espalier: Any, events_of: Any, eventually: Any, tmp_path: Path
) -> None:
    job, output = tmp_path / "job.yaml", tmp_path / "out"
    job.write_text(JOB)
    running = espalier("run", job, "--policy", "optimus", "--gpus", "2", "--output", output)

    def measured() -> Measurements | None:
        report = output / "report.json"
        return read_document(report, Report).measurements if report.exists() else None

    def of_both() -> bool:
        found = measured()
        return found is not None and {speed.workers for speed in found.speeds} == {1, 2}

    eventually(of_both, 120, "the speed of one worker and of two")
    running.process.send_signal(signal.SIGINT)
    running.finish()
    lent = [event["allocation"]["replicas"] for event in events_of(output, "AllocationChanged")]
    assert lent[:2] == [1, 2]
    found = measured()
    assert found is not None
    terms = JobTerms(min_replicas=1, max_replicas=2, time_budget_seconds=300, trains_together=True)
    facts = JobFacts(key="default/job", terms=terms, submitted_at=0.0, speeds=step_times(found))
    speed_model = MeasuredSpeedModel(job=facts, gpus_per_node=2)
    for speed in found.speeds:
        assert speed_model.step_seconds(speed.workers) == pytest.approx(speed.step_seconds)
