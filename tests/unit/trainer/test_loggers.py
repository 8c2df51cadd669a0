"""TensorBoard, Weights & Biases and MLflow get a run's figures: by a variable in any job, by a line in a script."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import warnings
from collections.abc import Mapping
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from espalier_core.types.events import EpochFinished, TrainerFinished
from espalier_core.types.task import Score
from espalier_trainer.errors import TrainerError
from espalier_trainer.own import join
from espalier_trainer.process.settings import SettingsError
from espalier_trainer.signals.metrics import LoggedReporter, opened
from espalier_trainer.signals.report import MemoryReporter, Reporter
from own_loops import DATA

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of protobuf, about itself
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter


class Steps:
    """What `wandb.init` returns, as far as it is called."""

    def __init__(self) -> None:
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.finished = False

    def log(self, figures: Mapping[str, float], step: int) -> None:
        self.logged.append((step, dict(figures)))

    def finish(self) -> None:
        self.finished = True


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    found = EventAccumulator(str(folder)).Reload()
    return {tag: [(each.step, each.value) for each in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def test_a_ready_job_is_written_to_both(run, tmp_path):
    steps = Steps()
    wrapped: list[LoggedReporter] = []

    def wrap(reporter: Reporter) -> Reporter:
        wrapped.append(LoggedReporter(reporter))
        wrapped[0].add(opened("tensorboard", tmp_path, "t"), close=True)
        wrapped[0].add(steps, close=True)
        return wrapped[0]

    done = run(wrap=wrap)
    wrapped[0].close()
    found = scalars(tmp_path / "tensorboard")
    epochs = [event for event in done.reporter.events if event.type == "EpochFinished"]
    told = dict(found["validation_accuracy"])
    assert all(told[event.step] == pytest.approx(event.validation_accuracy) for event in epochs)
    (ended,) = (event for event in done.reporter.events if event.type == "TrainerFinished")
    assert dict(found["test_accuracy"])[ended.step] == pytest.approx(ended.test_accuracy)
    assert {"train_loss", "depth", "parameters"} <= found.keys()
    assert steps.finished
    assert [step for step, _ in steps.logged] == sorted(step for step, _ in steps.logged)
    assert any(figures.get("test_accuracy") == ended.test_accuracy for _, figures in steps.logged)


@pytest.mark.parametrize("measure", ["r2", "bits_per_character"])
def test_scores_of_jobs_without_an_accuracy_are_written(measure, tmp_path):
    steps, logged = Steps(), LoggedReporter(MemoryReporter())
    logged.add(opened("tensorboard", tmp_path, "t"), close=True)
    logged.add(steps)
    shared: dict[str, Any] = {"time": datetime.now(UTC), "used_seconds": 1.0, "epoch": 1, "depth": 2, "parameters": 9}
    shared |= {"max_step_gap_seconds": 0.1}
    losses = {"train_loss": 0.7, "validation_loss": 0.6, "learning_rate": 0.1}
    score = Score(measure=measure, value=0.5)
    logged.record(EpochFinished(**shared, **losses, step=3, validation_score=score))
    logged.record(EpochFinished(**shared, **losses, step=6))
    logged.record(TrainerFinished(**shared, phase="Completed", reason="BudgetUsed", step=6, test_score=score))
    logged.close()
    found = scalars(tmp_path / "tensorboard")
    assert found[f"validation_{measure}"] == [(3, 0.5)]
    assert found[f"test_{measure}"] == [(6, 0.5)]
    assert [step for step, _ in found["validation_loss"]] == [3, 6]
    assert not {"validation_accuracy", "test_accuracy", "test_loss"} & found.keys()
    assert steps.logged[-1] == (6, {f"test_{measure}": 0.5})


def test_a_script_writes_by_one_line(leader, tmp_path):
    steps, writer = Steps(), SummaryWriter(str(tmp_path / "tb"))
    train(epochs=2, targets=(steps, writer))
    writer.close()
    assert [(step, figures["mine"]) for step, figures in steps.logged if "mine" in figures][-1] == (6, 1.0)
    assert dict(scalars(tmp_path / "tb")["mine"])[3] == 0.0


def test_a_script_without_a_job_writes_what_it_reports():
    steps = Steps()
    train(epochs=2, targets=(steps,))
    assert steps.logged == [(3, {"mine": 0.0}), (6, {"mine": 1.0})]


def train(epochs: int, targets: tuple[Any, ...]) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loop, batches = join(model, optimizer, DataLoader(DATA, batch_size=4))
    with pytest.raises(TrainerError, match="int has neither add_scalar .* nor log"):
        loop.log_to(3)
    for target in targets:
        loop.log_to(target)
    for epoch in loop.epochs(epochs):
        for inputs, labels in batches:
            optimizer.zero_grad()
            loop.backward(nn.functional.cross_entropy(model(inputs), labels))
            optimizer.step()
        loop.report(mine=float(epoch))


@pytest.mark.slow
def test_weights_and_biases_is_opened_offline(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_SILENT", "true")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logged = LoggedReporter(None)
        logged.add(opened("wandb", tmp_path, "t"), close=True)
        logged._write({"loss": 1.0}, 1)
        logged.close()
    assert list(tmp_path.glob("wandb/offline-run-*/*.wandb"))


def test_a_target_that_fails_does_not_end_training(caplog):
    class Broken(Steps):
        def log(self, figures: Mapping[str, float], step: int) -> None:
            raise RuntimeError("the server is away")

        def finish(self) -> None:
            raise RuntimeError("the server is still away")

    logged, steps = LoggedReporter(MemoryReporter()), Steps()
    logged.add(Broken(), close=True)
    logged.add(steps, close=True)
    logged._write({"loss": 1.0}, 7)
    logged.close()
    assert (steps.logged, steps.finished) == ([(7, {"loss": 1.0})], True)
    assert [record.getMessage() for record in caplog.records] == [
        "figures of step 7 were not logged: the server is away",
        "the last figures may not be logged: the server is still away",
    ]


@pytest.mark.slow
def test_mlflow_without_its_server_is_an_error_of_the_setting(tmp_path, monkeypatch):
    code = """
import sys
from pathlib import Path
from espalier_trainer.signals.metrics import opened
opened("mlflow", Path(sys.argv[1]), "digits")
"""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")  # where nothing listens
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    ended = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert "SettingsError: ESPALIER_LOG_TO is 'mlflow', and http://127.0.0.1:9 accepts no run" in ended.stderr


@pytest.mark.slow
def test_mlflow_is_opened_in_a_file(tmp_path):
    """In a process of its own: its store starts threads, and its libraries warn of themselves."""
    code = """
import sys
from pathlib import Path
from espalier_trainer.signals.metrics import LoggedReporter, opened
logged = LoggedReporter(None)
logged.add(opened("mlflow", Path(sys.argv[1]), "digits"), close=True)
for step in (1, 2):
    logged._write({"loss": 1.0 / step}, step)
logged.close()
"""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "figures")], env=variables, cwd=tmp_path, check=True)
    with closing(sqlite3.connect(tmp_path / "figures" / "mlflow.db")) as database:
        (run,) = database.execute("SELECT name, status, run_uuid FROM runs")
        figures = database.execute("SELECT key, value, step FROM metrics WHERE run_uuid = ? ORDER BY step", run[2:])
        assert run[:2] == ("digits", "FINISHED")
        assert list(figures) == [("loss", 1.0, 1), ("loss", 0.5, 2)]
    assert not (tmp_path / "mlruns").exists()


def test_what_is_not_known_is_named(tmp_path):
    with pytest.raises(SettingsError, match="ESPALIER_LOG_TO is 'aim'; it must be tensorboard, wandb or mlflow"):
        opened("aim", tmp_path, "t")
