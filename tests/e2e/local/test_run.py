"""The main job on one machine, end to end: real trainer, real agent, real files."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paced import paced_digits

Start = Callable[..., Any]


def test_a_model_grows_into_a_gpu_that_appears(
    espalier: Start, job_file: Callable[..., Path], tmp_path: Path, alive: Callable[[Path], list[int]]
) -> None:
    out = tmp_path / "out"
    code, stdout, stderr = espalier(
        "run", job_file(), "--gpus", "1", "--arrive", "25%:1", "--output", out, "--json", "--simulate"
    ).finish()
    assert code == 0, stderr
    result = json.loads(stdout)
    assert result == json.loads((out / "result.json").read_text())
    assert (result["phase"], result["reason"]) == ("Complete", "BudgetExhausted")
    assert result["usedSeconds"] >= 4
    assert result["testAccuracy"] > 0.3
    assert [record["allocation"]["gpus"] for record in result["allocations"]] == [1, 2]
    assert result["allocations"][1]["usedSeconds"] >= 1
    assert len(result["adaptations"]) == 2
    assert all(adaptation["source"] == "agent" for adaptation in result["adaptations"])
    grown = sum(adaptation["result"] == "Grown" for adaptation in result["adaptations"])
    assert result["depthAfter"] == result["depthBefore"] + grown
    assert (out / "training.png").read_bytes().startswith(b"\x89PNG")
    assert alive(out) == []


def test_workers_train_together_while_the_job_has_gpus_for_them(
    espalier: Start,
    job_file: Callable[..., Path],
    tmp_path: Path,
    eventually: Callable[..., Any],
    events_of: Callable[..., list[dict[str, Any]]],
    alive: Callable[[Path], list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = tmp_path / "out"
    (tmp_path / "paced.py").write_text(paced_digits(0.1))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    job = job_file(budget=300, most=3, gpu_seconds=10000)
    untried = job.read_text().replace("maxAdaptations: 2", "maxAdaptations: 2, trials: 'Off'")
    job.write_text(untried + "  training: {elasticBatch: keepGlobal, model: {entrypoint: 'paced:digits'}}\n")
    run = espalier("run", job, "--gpus", "1", "--arrive", "0s:2", "--depart", "50s:2", "--output", out, "--simulate")

    def members() -> list[int]:
        return [event["workers"] for event in events_of(out, "WorkersChanged")]

    # Importing takes each process as long as it takes, the first one and then the others: 40 s were seen for each.
    eventually(lambda: members()[-1:] == [3], seconds=120, what="three workers")
    eventually(lambda: events_of(out, "AdaptationFinished"), what="a growth")
    eventually(lambda: members()[-1:] == [1], seconds=90, what="one worker")
    assert not [event for event in events_of(out, "Warned") if event["reason"] in ("WorkerFailed", "MembersDiffer")]
    eventually(lambda: not list(out.glob("worker-*.pid")), what="the end of the processes without GPU")
    assert len(events_of(out, "TrainerStarted")) == 1
    run.process.send_signal(signal.SIGINT)
    run.finish()
    assert alive(out) == []


def test_interrupted_it_ends_names_the_command_that_goes_on_and_goes_on(
    espalier: Start,
    job_file: Callable[..., Path],
    tmp_path: Path,
    eventually: Callable[..., Any],
    events_of: Callable[..., list[dict[str, Any]]],
    alive: Callable[[Path], list[int]],
) -> None:
    out = tmp_path / "out"
    command = ("run", job_file(budget=6), "--gpus", "2", "--output", out, "--simulate")
    first = espalier(*command)
    eventually(lambda: events_of(out, "AdaptationFinished"), what="an adaptation")
    first.process.send_signal(signal.SIGINT)
    code, _, stderr = first.finish()
    assert code == 130
    assert f"--output {out}" in stderr.splitlines()[-1]
    # Not on the PATH, so named as it was called: what is printed can be typed.
    assert stderr.splitlines()[-1].startswith(f"interrupted; to resume: {first.process.args[0]} run")
    assert alive(out) == []
    stopped = json.loads((out / "result.json").read_text())
    assert stopped["phase"] == "Stopped"
    assert stopped["usedSeconds"] < 6

    code, _, stderr = espalier(*command).finish()
    assert code == 0, stderr
    result = json.loads((out / "result.json").read_text())
    assert (result["phase"], result["reason"]) == ("Complete", "BudgetExhausted")
    started = events_of(out, "TrainerStarted")
    assert [event["resumed"] for event in started] == [False, True]
    assert started[1]["depth"] >= stopped["depthAfter"]
    assert started[1]["usedSeconds"] >= stopped["usedSeconds"] - 0.1


def test_killed_without_warning_it_goes_on_with_the_same_total_budget(
    espalier: Start,
    job_file: Callable[..., Path],
    tmp_path: Path,
    eventually: Callable[..., Any],
    events_of: Callable[..., list[dict[str, Any]]],
    alive: Callable[[Path], list[int]],
) -> None:
    out = tmp_path / "out"
    command = ("run", job_file(budget=6), "--gpus", "2", "--output", out, "--simulate")
    first = espalier(*command)
    eventually(lambda: len(events_of(out, "CheckpointSaved")) >= 3, what="three checkpoints")
    first.kill()
    eventually(lambda: alive(out) == [], seconds=10, what="the end of all that the killed command had started")

    code, _, stderr = espalier(*command).finish()
    assert code == 0, stderr
    result = json.loads((out / "result.json").read_text())
    resumed = events_of(out, "TrainerStarted")[-1]
    assert resumed["resumed"]
    assert resumed["usedSeconds"] > 0
    assert (result["phase"], result["reason"]) == ("Complete", "BudgetExhausted")
