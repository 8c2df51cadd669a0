"""`espalier run` of a loop of a user's own that grows: its extra workers try a growth first."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

from espalier_api.documents import read_document
from espalier_api.report import Report

EXAMPLE = Path(__file__).parents[3] / "examples" / "own_script" / "growing.yaml"


def test_extra_workers_of_the_example_try_what_the_agent_advises(
    espalier: Any, events_of: Any, eventually: Any, tmp_path: Path
) -> None:
    job, output = tmp_path / "job.yaml", tmp_path / "out"
    # A tenth of the budget is how long advice waits for workers, which import torch, and how long each tries.
    text = EXAMPLE.read_text().replace("trials: Race", "trials: Confirm")
    job.write_text(text.replace("timeBudgetSeconds: 120", "timeBudgetSeconds: 400"))
    running = espalier("run", job, "--gpus", "3", "--output", output)
    (began,) = eventually(lambda: events_of(output, "TrialsStarted"), 120, "a trial")
    assert began["workers"] == 2
    eventually(lambda: events_of(output, "AdaptationFinished"), 120, "the decision")
    running.process.send_signal(signal.SIGINT)
    running.finish()
    (decided,) = read_document(output / "report.json", Report).adaptations
    assert decided.source == "agent"
    assert len(decided.arms) == 2
    assert decided.arms[1].action == "Nothing"
    assert all(arm.loss is not None and 0 < arm.loss < 3 and arm.steps > 0 for arm in decided.arms)
    assert decided.result in ("Grown", "Declined")
