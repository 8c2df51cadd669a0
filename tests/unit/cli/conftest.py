"""A finished run's folder, made from the api's models."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from espalier_core.types.allocation import Allocation, Direction
from espalier_core.types.events import (
    AdaptationFinished,
    AllocationAcknowledged,
    AllocationChanged,
    AnyEvent,
    EpochFinished,
    TrainerFinished,
    TrainerStarted,
)
from espalier_core.types.job import API_VERSION, KIND, AdaptiveTrainingJob
from espalier_core.types.result import RunResult, summarize
from operator_world.kube_objects import adaptation

# Tests have no package: their shared parts are imported from beside them.
sys.path.insert(0, str(Path(__file__).parent))

NOW = datetime(2026, 1, 1, tzinfo=UTC)
JOB = AdaptiveTrainingJob.model_validate(
    {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "a"}, "spec": {"timeBudgetSeconds": 10}}
)


@pytest.fixture
def events() -> tuple[AnyEvent, ...]:
    begin: dict[str, Any] = {"time": NOW, "used_seconds": 0}
    grown = adaptation(
        **{"decision_id": "d1", "action": "Deepen(block0)", "policy": "default@1", "probabilities": {}},
        **{"depth_before": 4, "depth_after": 5, "parameters_before": 100, "parameters_after": 150, "seconds": 0.02},
    )

    def epoch(number: int, used: float, accuracy: float, depth: int) -> EpochFinished:
        return EpochFinished(
            time=NOW,
            used_seconds=used,
            epoch=number,
            step=20 * number,
            train_loss=1 - accuracy,
            validation_loss=1 - accuracy,
            validation_accuracy=accuracy,
            learning_rate=0.01,
            depth=depth,
            parameters=100 if depth == 4 else 150,
            max_step_gap_seconds=0.1 * number,
        )

    return (
        AllocationChanged(**begin, allocation=Allocation(generation=1, replicas=1, gpus=1)),
        TrainerStarted(**begin, incarnation="i", resumed=False, epoch=0, step=0, depth=4, parameters=100, device="cpu"),
        epoch(1, 2.0, 0.5, 4),
        AllocationChanged(
            time=NOW,
            used_seconds=2.5,
            allocation=Allocation(generation=2, replicas=2, gpus=2, direction=Direction.UP, reason="ExtraGPUsGranted"),
        ),
        AllocationAcknowledged(time=NOW, used_seconds=2.6, generation=2, seconds=0.1),
        AdaptationFinished(time=NOW, used_seconds=3.0, adaptation=grown),
        epoch(2, 6.0, 0.8, 5),
        TrainerFinished(
            **{"time": NOW, "used_seconds": 10.01, "phase": "Completed", "reason": "BudgetExhausted", "epoch": 2},
            **{"step": 47, "test_accuracy": 0.81, "test_loss": 0.3, "depth": 5, "parameters": 150},
            max_step_gap_seconds=0.15,
        ),
    )


@pytest.fixture
def result(events: tuple[AnyEvent, ...]) -> RunResult:
    ended: dict[str, Any] = {"phase": "Complete", "reason": "BudgetExhausted", "used_seconds": 10.01}
    return summarize(JOB, events, seed=3, gpu_seconds_used=17.5, **ended)


@pytest.fixture
def finished_run(tmp_path: Path, events: tuple[AnyEvent, ...], result: RunResult) -> Callable[..., Path]:
    def make(name: str, accuracy: float | None = 0.81, seed: int = 0) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        own = result.model_copy(update={"test_accuracy": accuracy, "seed": seed})
        (folder / "result.json").write_text(own.model_dump_json(by_alias=True))
        (folder / "history.jsonl").write_text("".join(event.model_dump_json(by_alias=True) + "\n" for event in events))
        return folder

    return make
