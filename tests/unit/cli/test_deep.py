"""`espalier validate --deep`: what is tried, what is said of it, and what ends it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from espalier_cli.deep import NOT_CHECKED, OWN_COMMAND, check_deep
from espalier_cli.main import cli
from espalier_core.types.job import API_VERSION, KIND, AdaptiveTrainingJob
from waiting import PATIENCE

JOB = f"""\
apiVersion: {API_VERSION}
kind: {KIND}
metadata: {{name: bad}}
spec: {{timeBudgetSeconds: 9, training: {{model: {{entrypoint: "nets:bad"}}}}}}
"""
NETS = """\
from torch import nn

print("a word of the user's")

def good():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))

class Bad(nn.Sequential):
    def forward(self, inputs):
        if self.training:
            return super().forward(inputs, None)
        return super().forward(inputs)

def bad():
    return Bad(nn.Flatten(), nn.Linear(64, 10))
"""


def job(**spec: object) -> AdaptiveTrainingJob:
    body = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "a"}, "spec": {"timeBudgetSeconds": 9} | spec}
    return AdaptiveTrainingJob.model_validate(body)


def test_what_does_not_run_is_an_error_with_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "jobs.yaml").write_text(JOB)
    (tmp_path / "nets.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(cli, ["validate", "--deep", "jobs.yaml"])
    assert done.exit_code == 2, done.stderr
    (problem,) = done.stdout.splitlines()
    cause = "TypeError: Sequential.forward() takes 2 positional arguments but 3 were given"
    assert problem == f"jobs.yaml: bad: {cause} ({tmp_path}/nets.py:11, in forward)"
    assert "jobs.yaml: bad: model: 650 trainable parameters, depth 1\n" in done.stderr
    assert ": valid" not in done.stderr


def test_what_runs_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "nets.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    told: list[str] = []
    good = job(training={"model": {"entrypoint": "nets:good"}})
    assert check_deep(good, 2 * PATIENCE, told.append).problem == ""
    assert told == [
        "data: 1097 training, 200 validation and 500 test examples, 10 classes, inputs (1, 8, 8)",
        "model: 610 trainable parameters, depth 2",
        "growth: places to be deepened: 1",
        "step: one batch of 64 forward, backward and through Adam on cpu",
        "evaluation: one batch each of the validation and the test split",
        NOT_CHECKED,
    ]
    assert "a word of the user's" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("code", "seconds", "problem"),
    [
        ("time.sleep(60)", 0.5, "not ready within 0.5 s, while importing torch; --time-limit allows more"),
        ("say('stage', 'taking a step'); time.sleep(60)", 5, "not ready within 5 s, while taking a step"),
        ("say('stage', 'x'); os.kill(os.getpid(), 9)", 60, "the check ended with exit code -9, while x"),
        ("say('found', 'data'); say('failed', 'why')", 60, "why"),
        ("say('found', 'data'); say('done', '')", 60, ""),
    ],
)
def test_a_check_that_does_not_end_or_dies_says_where(code: str, seconds: float, problem: str) -> None:
    program = f"import json, os, time\ndef say(kind, text): print(json.dumps({{kind: text}}), flush=True)\n{code}"
    told: list[str] = []
    checked = check_deep(job(), seconds, told.append, command=(sys.executable, "-c", program))
    assert checked.problem.startswith(problem)
    assert bool(checked.problem) is bool(problem)
    assert (NOT_CHECKED in told) is (problem == "")


def test_a_command_of_the_job_s_own_is_not_started() -> None:
    container = {"command": ["/no/such/program"], "resources": {"limits": {"nvidia.com/gpu": 1}}}
    told: list[str] = []
    checked = check_deep(job(template={"spec": {"containers": [container]}}), 60, told.append)
    assert (checked.problem, told) == ("", [OWN_COMMAND])
