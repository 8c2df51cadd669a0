"""Training runs of studies: the built-in trainer with the study's clock, from a checkpoint to a moment or the end.

A study trains many runs with a common beginning. Each continues in memory from the checkpoint of another
(`VirtualRun.start`), and its result has its last checkpoint (`FinishedRun.checkpoint`). The clock in
`services.scheduler` determines time: `VirtualScheduler`, where the study sets the cost of a step; `ChargedScheduler`,
which also lets time pass for anything else; or `WallScheduler`, real time with arrivals that are known beforehand.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from espalier_core.growth.architecture import Architecture
from espalier_core.types.job import AdaptiveTrainingJob, DatasetSpec, Insertion
from espalier_core.validation.reading import with_spec
from espalier_lab.virtual_time import VirtualScheduler
from espalier_trainer.builtin_loop.trainer import Trainer
from espalier_trainer.checkpoints.document import Checkpoint
from espalier_trainer.checkpoints.store import CheckpointStore
from espalier_trainer.data import load_data
from espalier_trainer.data.source import Data
from espalier_trainer.models.zoo import build_model
from espalier_trainer.net2net import deepen
from espalier_trainer.net2net.randomness import seed_everything
from espalier_trainer.run.growing import Study
from espalier_trainer.run.services import Services
from espalier_trainer.training.progress import TrainingResult

if TYPE_CHECKING:
    from espalier_trainer.distillation.shrinking import ShrinkOptions

NEVER: Final = 1_000_000
"""Epochs between evaluations of a run without evaluations on the way."""
NO_CHECKPOINTS_SECONDS: Final = 86_400
"""Interval of checkpoints of a run that is only saved at its end."""


def undisturbed(job: AdaptiveTrainingJob, **changes: Any) -> AdaptiveTrainingJob:
    """Return the job without evaluations and checkpoints on the way, which only cost wall time, and with `changes`.

    In virtual time both are free, so the result is the same, but for schedules and agents that read evaluations.
    """
    training = {"evaluateEveryEpochs": NEVER, **changes.pop("training", {})}
    return with_spec(job, training=training, checkpoint={"intervalSeconds": NO_CHECKPOINTS_SECONDS}, **changes)


@dataclass
class CheckpointInMemory(CheckpointStore):
    """Provides the starting checkpoint of a run, and stores its last one."""

    start: Checkpoint | None = None
    last: Checkpoint | None = None

    def load_latest(self) -> Checkpoint | None:
        """Return the starting checkpoint."""
        return self.start

    def save(self, checkpoint: Checkpoint) -> Path:
        """Store it: its tensors belong to the run, so only the one of the end is usable."""
        self.last = checkpoint
        return self.folder


@dataclass
class ChargedScheduler(VirtualScheduler):
    """Virtual time that also passes without a step."""

    def charge(self, seconds: float) -> None:
        """Let time pass."""
        self._used += seconds


@dataclass
class WallScheduler(VirtualScheduler):
    """Real time, with arrivals that are known beforehand."""

    time_scale: float = 1.0
    """Budget seconds per wall second: less than 1 to simulate faster steps."""
    clock: Callable[[], float] = time.monotonic
    """Returns seconds; `time.process_time` excludes the load of the machine."""
    _started: float = field(init=False, default=0.0)
    _used_before: float = field(init=False, default=0.0)

    def start(self, used_seconds: float) -> None:
        """Begin to count from `used_seconds`."""
        self._used_before = used_seconds
        self._started = self.clock()

    def used_seconds(self) -> float:
        """Return the seconds used."""
        self._used = self._used_before + (self.clock() - self._started) * self.time_scale
        return self._used

    def time_left(self) -> float:
        """Return the seconds left."""
        return max(0.0, self.budget_seconds - self.used_seconds())

    def wall_time_left(self) -> float:
        """Return the wall seconds left."""
        return self.time_left() / self.time_scale

    def step_finished(self, architecture: Architecture | None) -> None:
        """Do nothing: the clock moves by itself."""


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """The result of a run."""

    trainer: Trainer
    """The trainer, with the trained `network`."""
    result: TrainingResult
    checkpoint: Checkpoint | None
    """The last checkpoint: if the run stopped before its end, others continue from it."""


def as_built(model: nn.Module) -> nn.Module:
    """Return the model unchanged."""
    return model


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualRun:
    """A run that will be trained. Its services belong to the study; checkpoints and the end belong to the run."""

    job: AdaptiveTrainingJob
    """The job, usually from `undisturbed`."""
    seed: int
    services: Services
    data: Data | None = None
    """None: the job's data, read once per process."""
    prepare: Callable[[nn.Module], nn.Module] = as_built
    """Returns the model to train, from the one that the job names."""
    start: Checkpoint | None = None
    """None: the beginning. The run trains in its tensors; pass a copy if other runs begin with it."""
    stop_at: float = math.inf
    """Budget seconds at which it stops, with a checkpoint."""
    study: Study = field(default_factory=Study)
    device: str = "cpu"
    shrink_options: ShrinkOptions | None = None

    def begin(self) -> BegunRun:
        """Return the run with its trainer, so that it can be connected before the first step."""
        data = data_of(self.job.spec.training.dataset) if self.data is None else self.data
        seed_everything(self.seed)
        training, example = self.job.spec.training, data.example_input().cpu()
        model = self.prepare(build_model(training.model, data.classes, example, training.task))
        checkpoints = CheckpointInMemory(Path(), start=self.start)
        scheduler, stop = self.services.scheduler, self.services.stop
        services = replace(
            self.services,
            checkpoints=checkpoints,
            stop=lambda: stop() or scheduler.used_seconds() >= self.stop_at,
        )
        trainer = Trainer(
            self.job,
            model,
            data,
            services,
            device=self.device,
            seed=self.seed,
            study=self.study,
            shrink_options=self.shrink_options,
        )
        return BegunRun(trainer, checkpoints)

    def train(self) -> FinishedRun:
        """Train to the end of the budget, to `stop_at`, or to the decision before which the study stops."""
        return self.begin().train()


@dataclass(frozen=True, slots=True)
class BegunRun:
    """A run before its first step."""

    trainer: Trainer
    checkpoints: CheckpointInMemory

    def train(self) -> FinishedRun:
        """Train as `VirtualRun.train` does."""
        result = self.trainer.run()
        return FinishedRun(self.trainer, result, self.checkpoints.last)


def deepened_from_scratch(
    model: nn.Module, points: Sequence[str], example: torch.Tensor, insertion: Insertion
) -> nn.Module:
    """Return the model with another layer at each of `points`, with separate random weights."""
    known = set(dict(model.named_modules()))
    for point in points:
        model = deepen(model, point, example, insertion)
    for name, module in model.named_modules():
        reset = getattr(module, "reset_parameters", None)
        if name not in known and callable(reset):
            reset()
    return model


@lru_cache(maxsize=1)
def _read(dataset: str) -> Data:
    return load_data(DatasetSpec.model_validate_json(dataset))


def data_of(dataset: DatasetSpec) -> Data:
    """Return the data, read once per process."""
    return _read(dataset.model_dump_json(by_alias=True, exclude_none=True))
