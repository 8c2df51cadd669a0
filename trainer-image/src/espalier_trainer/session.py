"""Builds what a job names and trains it: the composition root of a trainer process."""

from __future__ import annotations

import errno
import importlib
import logging
import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import torch
from torch import nn

from espalier_api import environment
from espalier_api.job import AdaptationMode, AdaptiveTrainingJob, Stragglers, TrainingSpec
from espalier_api.reasons import Reason
from espalier_api.report import TrainerPhase
from espalier_trainer.advisor import Advisor, HTTPAdvisor, NoAgent, WithFallback
from espalier_trainer.checkpoint import CheckpointStore
from espalier_trainer.contracts import connected
from espalier_trainer.data import load_data
from espalier_trainer.data.source import Data
from espalier_trainer.elastic import Follower, Team
from espalier_trainer.elastic.states import digest
from espalier_trainer.entrypoint import load_entrypoint
from espalier_trainer.errors import CheckpointFolderError, DatasetError, ExitCode, ModelError
from espalier_trainer.fallback import build_fallback
from espalier_trainer.loop import Trainer
from espalier_trainer.metrics import MeteredReporter, served
from espalier_trainer.models import build_model
from espalier_trainer.narrator import Narrator
from espalier_trainer.network import Network, new_network
from espalier_trainer.progress import TrainingResult
from espalier_trainer.randomness import seed_everything
from espalier_trainer.scheduler import DocumentScheduler
from espalier_trainer.settings import Role, Settings, StopSignal

logger = logging.getLogger(__name__)

SMALL_MODEL_PARAMETERS = 100_000
"""Below this a step on the CPU is too short to share between threads. Measured on the digits net, two cores: 1.5 ms a
step with one thread and with two on an idle machine; on one that others use too, 7 ms with one and 12 to 50 ms with
two, which then wait for each other."""

_NEVER_WRITABLE = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST}
"""What only a change of the job can mend."""


def train(settings: Settings, job: AdaptiveTrainingJob, stop: StopSignal) -> ExitCode:
    """Build what the job names and train it; raises `TrainerError` for what the person can mend."""
    training = job.spec.training
    seed = training.seed if settings.seed is None else settings.seed
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    seed_everything(seed)
    checkpoints = open_checkpoints(job, settings.checkpoint_folder)
    with ExitStack() as stack:
        contracts = stack.enter_context(connected(settings, job))
        reporter = MeteredReporter(contracts.reporter, job.spec.time_budget_seconds)
        if settings.metrics_port is not None:
            stack.enter_context(served(reporter.metrics, settings.metrics_port))
        data, model = load(training, device)
        trainer = Trainer(
            job,
            model,
            data,
            DocumentScheduler(contracts.sources, job, settings.time_scale),
            advisor=build_advisor(job, settings.agent_url, seed, stop),
            reporter=reporter,
            checkpoints=checkpoints,
            device=device,
            seed=seed,
            used_seconds=contracts.used_seconds,
            stop=stop,
            incarnation=settings.incarnation,
            step_took=reporter.step_took,
            team=team_of(settings, training, device),
        )
        stop.training = True
        return exit_code(trainer.run(), stop)


def follower(settings: Settings, job: AdaptiveTrainingJob, stop: Callable[[], bool]) -> Follower:
    """Load what it takes to train as one of the workers that another leads, until `stop` says to go.

    Raises `TrainerError` for what the person can mend.
    """
    training = job.spec.training
    seed = training.seed if settings.seed is None else settings.seed
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    seed_everything(seed)  # the starting weights are the leader's
    data, model = load(training, device)
    data = data.to(device)
    start, _ = new_network(model.to(device), training.optimizer, data.example_input(), job.spec.adaptation.insertion)
    base = settings.role is Role.BASE
    return Follower(job, start, data, device, seed, base=base, index=settings.index, stop=stop)


def load(training: TrainingSpec, device: torch.device) -> tuple[Data, nn.Module]:
    """Return the job's data, and its starting model; on the CPU with as many threads as it is worth."""
    data = load_data(training.dataset)
    model = build_model(training.model, data.classes, data.example_input())
    set_threads(model, device)
    return data, model


def set_threads(model: nn.Module, device: torch.device) -> None:
    """Let a small model on the CPU have one thread, unless the environment says how many."""
    parameters = sum(parameter.numel() for parameter in model.parameters())
    if device.type == "cpu" and parameters < SMALL_MODEL_PARAMETERS and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)


def team_of(
    settings: Settings, training: TrainingSpec, device: torch.device, hashed: Callable[[Network], int] = digest
) -> Callable[[Narrator], Team] | None:
    """Return what makes the meeting place of the job's workers, None where each trains alone.

    `hashed` is what must be equal in all members.
    """
    place, policy = settings.rendezvous, training.elastic_batch
    if place is None or policy is None:
        return None

    def make(narrator: Narrator) -> Team:
        return Team(
            place,
            policy,
            device,
            narrator.warn,
            narrator.workers_changed,
            sync_batch_norm=bool(training.sync_batch_norm),
            stragglers=training.stragglers or Stragglers.REPORT,
            hashed=hashed,
        )

    return make


def warm_up(training: TrainingSpec) -> None:
    """Import what training would import, the job's own code too; `TrainerError` where that is not possible."""
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))])  # the first optimizer imports another second's worth of torch
    model, dataset = training.model, training.dataset
    if model.entrypoint is not None:
        load_entrypoint(model.entrypoint, "training.model.entrypoint", ModelError)
    elif (model.name or "").startswith("torchvision:"):
        importlib.import_module("torchvision.models")
    if dataset.entrypoint is not None:
        load_entrypoint(dataset.entrypoint, "training.dataset.entrypoint", DatasetError)


def open_checkpoints(job: AdaptiveTrainingJob, folder: Path | None) -> CheckpointStore:
    """Return the store in `folder`, or where the job says; `CheckpointFolderError` where nothing can ever be written.

    A disk that is full, or away for the moment, is no such case: then training goes on without checkpoints.
    """
    path = folder or Path(job.spec.checkpoint.path)
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        if error.errno in _NEVER_WRITABLE:
            field = "spec.checkpoint.path" if folder is None else environment.CHECKPOINT_DIR
            raise CheckpointFolderError(
                f"{field}: {path} cannot be written by user {os.getuid()} ({error.strerror}); mount a volume there "
                "that this user may write (securityContext.fsGroup in spec.template), or name another folder"
            ) from error
        logger.warning("%s: %s; checkpoints may fail", path, error.strerror)
    return CheckpointStore(path)


def build_advisor(job: AdaptiveTrainingJob, default_url: str | None, seed: int, stop: StopSignal) -> Advisor | None:
    """Return whom the job asks: its own agent, the installation's, or the fallback alone; None in mode Off."""
    adaptation = job.spec.adaptation
    if adaptation.mode is AdaptationMode.OFF:
        return None
    url = adaptation.agent.url if adaptation.agent else default_url
    agent: Advisor = HTTPAdvisor(url, stop) if url else NoAgent()
    return WithFallback(agent, build_fallback(adaptation.fallback, seed))


def exit_code(result: TrainingResult, stop: StopSignal) -> ExitCode:
    """Return what the process ends with."""
    if result.phase is TrainerPhase.COMPLETED:
        return ExitCode.COMPLETE
    if result.phase is TrainerPhase.STOPPED:
        return stop.exit_code()
    print(result.message, file=sys.stderr)
    return ExitCode.LOSS_NOT_FINITE if result.reason is Reason.LOSS_NOT_FINITE else ExitCode.ERROR
