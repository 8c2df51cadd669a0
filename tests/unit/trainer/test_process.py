"""Real trainer processes and their file contracts: budget, growth, signals, resumption, exit codes."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time

import pytest

from espalier_core.types.events import TrainerFinished, TrainerStarted
from espalier_core.types.reasons import Reason
from espalier_core.types.report import AdaptationResult, TrainerPhase
from espalier_trainer.checkpoints.store import CheckpointStore
from trainer_processes import ended
from waiting import PATIENCE, until


def _training(place) -> bool:
    return any(isinstance(event, TrainerStarted) for event in place.events()) and place.has_report()


def _last(place, kind):
    return [event for event in place.events() if isinstance(event, kind)][-1]


def test_gpu_that_comes_makes_the_network_grow(workplace, make_job, agent_server, advice_body):
    decisions = iter(["block0", "block1", None])
    agent = agent_server(lambda body: (200, advice_body(next(decisions), f"d-{len(agent.requests)}")))
    place = workplace(make_job(timeBudgetSeconds=600), agent_url=agent.url)
    place.allocate(1)
    process = place.start()
    until(lambda: _training(place), "training")
    place.allocate(2, reason=Reason.EXTRA_GPUS_GRANTED)
    until(lambda: place.report().acknowledged_generation == 2, "acknowledgement of generation 2")
    until(lambda: len(place.report().adaptations) == 3, "three answers")
    place.allocate(2, stop=Reason.GPU_BUDGET_EXHAUSTED)
    assert ended(process, place) == 0, place.log
    report = place.report()
    assert (report.phase, report.reason) == (TrainerPhase.COMPLETED, Reason.GPU_BUDGET_EXHAUSTED)
    assert [entry.result for entry in report.adaptations] == [
        AdaptationResult.GROWN,
        AdaptationResult.GROWN,
        AdaptationResult.DECLINED,
    ]
    assert [entry.decision_id for entry in report.adaptations] == ["d-1", "d-2", "d-3"]
    assert report.adaptations[0].trigger == Reason.EXTRA_GPUS_GRANTED
    assert report.depth == 6
    finished = _last(place, TrainerFinished)
    assert finished.test_accuracy is not None
    path, outcome = agent.requests[-1]
    assert path == "/v1/outcomes"
    assert outcome["decisionIds"] == ["d-1", "d-2", "d-3"]
    assert outcome["finalAccuracy"] == finished.test_accuracy


def test_sigterm_and_sigkill_at_random_moments_keep_budget_and_growth(workplace, make_job, agent_server, advice_body):
    chance = random.Random(7)
    agent = agent_server(lambda body: (200, advice_body("block0")))
    job = make_job(timeBudgetSeconds=3600, adaptation={"maxAdaptations": 2}, checkpoint={"intervalSeconds": 0.2})
    place = workplace(job, agent_url=agent.url)
    place.allocate(2)
    codes = []
    for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGTERM, signal.SIGKILL, None):
        starts = sum(isinstance(event, TrainerStarted) for event in place.events())
        process = place.start()
        until(
            lambda: sum(isinstance(event, TrainerStarted) for event in place.events()) > starts,  # noqa: B023
            "training",
        )
        if number is None:
            until(lambda: len(place.report().adaptations) == 2, "two adaptations")
            place.allocate(2, budget=0.001)  # which is used up
        else:
            time.sleep(chance.uniform(0.05, 0.5))
            os.kill(process.pid, number)
        codes.append(ended(process, place))
    assert codes == [143, -signal.SIGKILL, 143, -signal.SIGKILL, 0], place.log
    report = place.report()
    assert report.phase is TrainerPhase.COMPLETED
    assert [entry.result for entry in report.adaptations] == [AdaptationResult.GROWN] * 2
    assert report.depth == 6
    # No incarnation began with less used than the one before had reported.
    used = [event.used_seconds for event in place.events() if isinstance(event, TrainerStarted)]
    assert used == sorted(used)
    assert report.used_seconds >= used[-1] > 0
    trained = [event for event in place.events() if isinstance(event, TrainerStarted)]
    assert [event.resumed for event in trained] == [False, True, True, True, True]
    assert CheckpointStore(place.checkpoints).load_latest().state.architecture.growth_history == {"block0": 2}


def test_sigterm_while_the_agent_is_silent_ends_at_once_with_a_checkpoint(workplace, make_job, agent_server):
    release = threading.Event()
    agent = agent_server(lambda body: (release.wait(600), (500, b""))[1])
    place = workplace(make_job(timeBudgetSeconds=600, adaptation={"decisionTimeoutSeconds": 300}), agent_url=agent.url)
    place.allocate(2)
    process = place.start()
    until(lambda: agent.requests, "the question to the agent")
    process.terminate()
    assert ended(process, place) == 143, place.log
    release.set()
    report = place.report()
    assert (report.phase, report.reason) == (TrainerPhase.STOPPED, Reason.INTERRUPTED)
    assert report.consultations == 0  # a question that was broken off does not count
    assert list(place.checkpoints.glob("checkpoint-*"))


def test_scheduler_that_says_stop_gets_a_checkpoint(workplace, make_job):
    place = workplace(make_job(timeBudgetSeconds=600, adaptation={"mode": "Off"}))
    place.allocate(1)
    process = place.start()
    until(lambda: _training(place), "training")
    place.allocate(1, stop=Reason.SUSPENDED)
    assert ended(process, place) == 143, place.log
    assert (place.report().phase, place.report().reason) == (TrainerPhase.STOPPED, Reason.SUSPENDED)


def test_time_scale_makes_the_budget_pass_faster(workplace, make_job):
    place = workplace(make_job(timeBudgetSeconds=400, adaptation={"mode": "Off"}), time_scale=400.0)
    place.allocate(1)
    process = place.start()
    assert ended(process, place) == 0, place.log  # which waits for less than that
    assert place.report().used_seconds >= 400


BAD_DATA = """
import torch
def data():
    inputs = torch.rand(256, 1, 8, 8)
    inputs[200] = float("nan")
    split = (inputs, torch.arange(256) % 10)
    return split, split, split
"""


def test_loss_that_is_not_finite_is_exit_code_3(workplace, make_job, tmp_path):
    (tmp_path / "bad_data.py").write_text(BAD_DATA)
    job = make_job(timeBudgetSeconds=600, training={"dataset": {"entrypoint": "bad_data:data"}})
    place = workplace(job, python_path=(str(tmp_path),))
    place.allocate(1)
    assert ended(place.start(), place) == 3
    assert (place.report().phase, place.report().reason) == (TrainerPhase.FAILED, Reason.LOSS_NOT_FINITE)
    assert "learningRate" in place.report().message
    assert "learningRate" in place.log


@pytest.mark.parametrize(
    ("training", "said"),
    [
        ({"model": {"name": "torchvision:resnet19"}}, "torchvision has no classification model 'resnet19'"),
        ({"dataset": {"name": "imagefolder", "path": "/no/such/folder"}}, "/no/such/folder: no such folder or archive"),
        ({"schedule": {"name": "torch:NoLR"}}, "torch has no scheduler 'NoLR'"),
    ],
)
def test_what_the_person_can_mend_is_exit_code_2_with_a_sentence(workplace, make_job, training, said):
    place = workplace(make_job(training=training))
    place.allocate(1)
    assert ended(place.start(), place) == 2
    assert said in place.log
    assert "Traceback" not in place.log


def test_module_runs_as_a_program(tmp_path):
    (tmp_path / "job.yaml").write_text("kind: AdaptiveTrainingJob\nspec: {timeBudgetSeconds: -1}\n")
    command = [sys.executable, "-m", "espalier_trainer"]
    bare = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    job = {"ESPALIER_JOB_FILE": str(tmp_path / "job.yaml")}
    for variables, said in (
        ({}, "ESPALIER_JOB_FILE is not set"),
        ({**job, "ESPALIER_TIME_SCALE": "fast"}, "ESPALIER_TIME_SCALE is 'fast'"),
        (job, "spec.timeBudgetSeconds"),
    ):
        done = subprocess.run(command, env={**bare, **variables}, capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 2
        assert said in done.stderr
        assert done.stdout == ""
