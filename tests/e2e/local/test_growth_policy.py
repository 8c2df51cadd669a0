"""`espalier run --policy growth`: a real agent says what growing gains; the GPU is lent for it, and handed back."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

from espalier_core.files.documents import read_document
from espalier_core.types.report import Report

JOB = """\
apiVersion: espalier.dev/v1alpha1
kind: AdaptiveTrainingJob
metadata: {name: job}
spec:
  timeBudgetSeconds: 300
  maxReplicas: 2
  preemption: {noticeSeconds: 1, cooldownSeconds: 0.2, minRuntimeSeconds: 0.2}
  adaptation: {maxAdaptations: 1, fallback: Heuristic}
"""


def test_a_gpu_is_lent_until_the_job_has_grown(espalier: Any, events_of: Any, eventually: Any, tmp_path: Path) -> None:
    job, output = tmp_path / "job.yaml", tmp_path / "out"
    job.write_text(JOB)
    running = espalier("run", job, "--policy", "growth", "--gpus", "2", "--output", output)

    def lent() -> list[int]:
        return [event["allocation"]["replicas"] for event in events_of(output, "AllocationChanged")]

    eventually(lambda: lent()[:3] == [1, 2, 1], 120, "a loan that ends")
    returned = events_of(output)[-1]["usedSeconds"]
    # It reports every two seconds, and a loan follows a report.
    eventually(lambda: events_of(output)[-1]["usedSeconds"] > returned + 5, 120, "the time for another loan")
    running.process.send_signal(signal.SIGINT)
    running.finish()
    assert lent() == [1, 2, 1], "it can gain nothing by a second loan"
    report = read_document(output / "report.json", Report)
    (grown,) = report.adaptations
    assert grown.result == "Grown"
    assert report.measurements.growth is not None
    assert report.measurements.growth.gain == 0.0
