"""Builds what a job names and trains it: the composition root of a trainer process."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

from espalier_api.job import AdaptationMode, AdaptiveTrainingJob
from espalier_api.reasons import Reason
from espalier_api.report import TrainerPhase
from espalier_trainer.advisor import Advisor, HTTPAdvisor, NoAgent, WithFallback
from espalier_trainer.checkpoint import CheckpointStore
from espalier_trainer.data import load_data
from espalier_trainer.errors import ExitCode
from espalier_trainer.fallback import build_fallback
from espalier_trainer.loop import Trainer
from espalier_trainer.models import build_model
from espalier_trainer.progress import TrainingResult
from espalier_trainer.randomness import seed_everything
from espalier_trainer.report import FileReporter, previous_used_seconds
from espalier_trainer.scheduler import FileScheduler
from espalier_trainer.settings import Settings, StopSignal

SMALL_MODEL_PARAMETERS = 100_000
"""Below this a step on the CPU is too short to share between threads. Measured on the digits net, two cores: 1.5 ms a
step with one thread and with two on an idle machine; on one that others use too, 7 ms with one and 12 to 50 ms with
two, which then wait for each other."""


def train(settings: Settings, job: AdaptiveTrainingJob, stop: StopSignal) -> ExitCode:
    """Build what the job names and train it."""
    training = job.spec.training
    seed = training.seed if settings.seed is None else settings.seed
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    seed_everything(seed)
    data = load_data(training.dataset)
    model = build_model(training.model, data.classes, data.example_input())
    parameters = sum(parameter.numel() for parameter in model.parameters())
    if device.type == "cpu" and parameters < SMALL_MODEL_PARAMETERS and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
    trainer = Trainer(
        job,
        model,
        data,
        FileScheduler(settings.allocation_file, job, settings.time_scale),
        advisor=build_advisor(job, settings.agent_url, seed, stop),
        reporter=FileReporter(settings.report_file, settings.events_file),
        checkpoints=CheckpointStore(settings.checkpoint_folder or Path(job.spec.checkpoint.path)),
        device=device,
        seed=seed,
        used_seconds=previous_used_seconds(settings.report_file, job.key),
        stop=stop,
    )
    stop.training = True
    return exit_code(trainer.run(), stop)


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
