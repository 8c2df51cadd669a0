"""Digits under virtual time, with a second GPU that comes, makes steps three times as fast, and goes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from espalier_core.growth.architecture import Architecture
from espalier_core.types.advice import Action
from espalier_core.types.job import AdaptiveTrainingJob
from espalier_trainer.builtin_loop.trainer import Trainer
from espalier_trainer.checkpoints.store import CheckpointStore
from espalier_trainer.data import Data, load_data
from espalier_trainer.growth.advisor import Advisor, Scripted
from espalier_trainer.models.zoo import build_model
from espalier_trainer.net2net.randomness import seed_everything
from espalier_trainer.run.services import Services
from espalier_trainer.signals.report import MemoryReporter
from espalier_trainer.signals.scheduler import ReplicaChange, VirtualScheduler
from espalier_trainer.training.progress import TrainingResult

SMALL_SECONDS = 0.004
COME, GONE = 0.1, 0.3
SCRIPT = (Action.deepen("block0"), Action.deepen("block2"))


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def shrinking_job(**spec: Any) -> AdaptiveTrainingJob:
    """Return the digits job with `onReclaim: Distill`."""
    adaptation = {"onReclaim": "Distill", "maxAdaptations": 2, **spec.pop("adaptation", {})}
    training = {"evaluateEveryEpochs": 10**6}
    merged = {"timeBudgetSeconds": 1.5, "maxReplicas": 2, "adaptation": adaptation, "training": training, **spec}
    metadata = {"name": "t"}
    whole = {"apiVersion": "espalier.dev/v1alpha1", "kind": "AdaptiveTrainingJob", "metadata": metadata, "spec": merged}
    return AdaptiveTrainingJob.model_validate(whole)


@pytest.fixture(scope="session")
def make_job() -> Callable[..., AdaptiveTrainingJob]:
    return shrinking_job


@pytest.fixture(scope="session")
def digits() -> Data:
    return load_data(shrinking_job().spec.training.dataset)


def step_seconds(architecture: Architecture | None) -> float:
    """A step costs 4 ms, and as much again for each layer added."""
    return SMALL_SECONDS * (1 + sum(architecture.growth_history.values() if architecture else ()))


@dataclass
class ReclaimedRun:
    """One finished run."""

    result: TrainingResult
    trainer: Trainer
    reporter: MemoryReporter

    def decided(self) -> list[Any]:
        """Return the records of reclaims."""
        return [each for each in self.result.adaptations if each.action == "Distill"]


@pytest.fixture(scope="session")
def reclaimed(digits: Data) -> Callable[..., ReclaimedRun]:
    """Train; the second GPU comes at COME and goes at GONE, unless `arrivals` say otherwise."""

    def runner(
        job: AdaptiveTrainingJob | None = None,
        *,
        arrivals: tuple[ReplicaChange, ...] = (ReplicaChange(COME, 2), ReplicaChange(GONE, 1)),
        store: Path | None = None,
        speed: float = 3.0,
        cost: Callable[[Architecture | None], float] = step_seconds,
        advisor: Advisor | None = None,
        **options: Any,
    ) -> ReclaimedRun:
        job = job or shrinking_job()
        seed_everything(job.spec.training.seed)
        model = build_model(job.spec.training.model, digits.classes, digits.example_input())
        scheduler = VirtualScheduler(
            job.spec.time_budget_seconds, cost, arrivals, speedup=lambda replicas: 1 + (replicas - 1) * (speed - 1)
        )
        reporter = MemoryReporter()
        checkpoints = None if store is None else CheckpointStore(store)
        connected = {name: options.pop(name) for name in ("stop",) if name in options}
        services = Services(scheduler, reporter, advisor or Scripted(SCRIPT), checkpoints, **connected)
        trainer = Trainer(job, model, digits, services, **options)
        return ReclaimedRun(trainer.run(), trainer, reporter)

    return runner
