"""`espalier run` of a loop of a user's own that grows: its extra workers try a growth first."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

from espalier_core.files.documents import read_document
from espalier_core.types.report import Report

EXAMPLE = Path(__file__).parents[3] / "examples" / "own_script" / "growing.yaml"
SCRIPT = """
import os, runpy, time
from pathlib import Path
import sklearn.datasets, torch, espalier_trainer.own
from torch.optim.optimizer import register_optimizer_step_post_hook

ready = Path({ready!r})
(ready / str(os.getpid())).touch()

def pause(*_):
    time.sleep(0.02)
    while len(list(ready.iterdir())) < 3:
        time.sleep(0.02)

register_optimizer_step_post_hook(pause)
runpy.run_path({example!r}, run_name="__main__")
"""
"""The example, whose first step ends when all workers have imported torch: advice waits a tenth of the budget for them.

Each step is followed by a pause, so that three workers leave the cores to other tests."""


def test_extra_workers_of_the_example_try_what_the_agent_advises(
    espalier: Any, events_of: Any, eventually: Any, tmp_path: Path
) -> None:
    job, script, ready, output = (tmp_path / name for name in ("job.yaml", "script.py", "ready", "out"))
    ready.mkdir()
    script.write_text(SCRIPT.format(ready=str(ready), example=str(EXAMPLE.with_suffix(".py"))))
    text = EXAMPLE.read_text().replace("trials: Race", "trials: Confirm")
    text = text.replace("examples/own_script/growing.py", str(script))
    job.write_text(text.replace("timeBudgetSeconds: 120", "timeBudgetSeconds: 240"))
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
