"""The process of the built-in loop: builds the model and data of a job, and trains."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import nn

from espalier_core.types.environment import ExitCode, Role
from espalier_core.types.job import AdaptiveTrainingJob, TrainingSpec
from espalier_core.types.report import TrainerPhase
from espalier_trainer.builtin_loop.trainer import Trainer
from espalier_trainer.data import load_data
from espalier_trainer.data.source import Data
from espalier_trainer.elastic.membership import WorkerIdentity
from espalier_trainer.errors import DatasetError, ModelError, SupersededError, TrainerError
from espalier_trainer.models.zoo import build_model
from espalier_trainer.net2net.randomness import seed_everything
from espalier_trainer.process.entrypoint import load_entrypoint
from espalier_trainer.process.settings import StopSignal, TrainerSettings
from espalier_trainer.run.contracts import early_report
from espalier_trainer.run.services import Services, connect, keep_freed, seed_of, set_threads
from espalier_trainer.training.network import new_network
from espalier_trainer.training.progress import TrainingResult, ending_of, exit_code_of

if TYPE_CHECKING:
    from espalier_trainer.builtin_loop.worker import BuiltinWorker


def train(settings: TrainerSettings, job: AdaptiveTrainingJob, stop: StopSignal) -> ExitCode:
    """Build the job's model and data, and train. Failures are reported with their cause.

    Raises `TrainerError` where the job cannot be connected, and `SupersededError` if a later leader has taken over.
    """
    seed, device = seed_of(settings, job), usable_device()
    keep_freed(device)
    seed_everything(seed)
    with connect(settings, job, stop, device, seed) as services:
        trainer, known = None, (job.key, services.incarnation, services.attempt, services.used_seconds)
        services.reporter.publish(lambda: early_report(*known), urgent=True)
        try:
            data, model = load(job.spec.training, device)
            trainer = Trainer(job, model, data, services, device=device, seed=seed)
            stop.training = True
            return exit_code(trainer.run(), stop)
        except SupersededError:
            raise
        except BaseException as error:  # the job's own code may raise anything, even SystemExit
            if stop():
                raise
            return failed(error, job, services, trainer)


def follower(settings: TrainerSettings, job: AdaptiveTrainingJob, stop: Callable[[], bool]) -> BuiltinWorker:
    """Load data and model, and return a worker that can follow a leader until `stop` returns True.

    Raises `TrainerError` for errors that the job's author can fix.
    """
    training, seed, device = job.spec.training, seed_of(settings, job), usable_device()
    keep_freed(device)
    seed_everything(seed)  # the same starting weights as the leader's
    data, model = load(training, device)
    data = data.to(device)
    start, _ = new_network(
        model.to(device), training.optimizer, data.example_input(), job.spec.adaptation.described_insertion
    )
    identity = WorkerIdentity(settings.role is Role.BASE, settings.index, settings.node)
    from espalier_trainer.builtin_loop.worker import BuiltinWorker

    made = BuiltinWorker(job, start, data, device, seed, identity, stop=stop)
    made.warm_up()
    return made


def usable_device() -> torch.device:
    """Return the GPU if there is one, otherwise the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def load(training: TrainingSpec, device: torch.device) -> tuple[Data, nn.Module]:
    """Return the job's data and its starting model; on the CPU, limit the threads of a small model."""
    data = load_data(training.dataset, training.task)
    model = build_model(training.model, data.classes, data.example_input(), training.task)
    set_threads(model, device)
    return data, model


def warm_up(training: TrainingSpec) -> None:
    """Import the modules of training, including the job's own code; raise `TrainerError` if that fails."""
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))])  # the first optimizer imports another second's worth of torch
    model, dataset = training.model, training.dataset
    if model.entrypoint is not None:
        load_entrypoint(model.entrypoint, "training.model.entrypoint", ModelError)
    elif (model.name or "").startswith("torchvision:"):
        importlib.import_module("torchvision.models")
    if dataset.entrypoint is not None:
        load_entrypoint(dataset.entrypoint, "training.dataset.entrypoint", DatasetError)


def failed(error: BaseException, job: AdaptiveTrainingJob, services: Services, trainer: Trainer | None) -> ExitCode:
    """Report and print why the run ends; return the exit code of the process. `trainer` is None before it exists."""
    if not isinstance(error, TrainerError):
        traceback.print_exception(error)
    if trainer is not None:
        ending = trainer.broken_by(error)
    else:
        ending = ending_of(error, stepped=False)
        known = (job.key, services.incarnation, services.attempt, services.used_seconds)
        report = early_report(*known, ending.phase, ending.reason, ending.message)
        services.reporter.publish(lambda: report, urgent=True)
    print(ending.message, file=sys.stderr)
    return exit_code_of(ending.reason)


def exit_code(result: TrainingResult, stop: StopSignal) -> ExitCode:
    """Return the exit code of the process."""
    if result.phase is TrainerPhase.COMPLETED:
        return ExitCode.COMPLETE
    if result.phase is TrainerPhase.STOPPED:
        return stop.exit_code()
    print(result.message, file=sys.stderr)
    return exit_code_of(result.reason)
