"""The trainer process: a job file and a few environment variables in, an exit code out.

What a backend sets is named in `espalier_api.environment`. stdout is not used; logs go to stderr.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import torch

from espalier_api import environment
from espalier_api.job import AdaptationMode, AdaptiveTrainingJob
from espalier_api.reasons import Reason
from espalier_api.report import TrainerPhase
from espalier_api.validation import JobFileError, load_job
from espalier_trainer.advisor import Advisor, HTTPAdvisor, NoAgent, WithFallback
from espalier_trainer.checkpoint import CheckpointStore
from espalier_trainer.data import load_data
from espalier_trainer.errors import ExitCode, TrainerError
from espalier_trainer.fallback import build_fallback
from espalier_trainer.loop import Trainer
from espalier_trainer.models import build_model
from espalier_trainer.progress import TrainingResult
from espalier_trainer.randomness import seed_everything
from espalier_trainer.report import FileReporter, previous_used_seconds
from espalier_trainer.scheduler import FileScheduler

logger = logging.getLogger("espalier_trainer")

SMALL_MODEL_PARAMETERS = 100_000
"""Below this a step is shorter than handing it to a second thread is worth (measured on the digits net: the same
1.5 to 1.8 ms a step with 1 and with 2 threads), and one thread leaves the cores to others."""


class SettingsError(TrainerError):
    """An environment variable is missing or has a value that cannot be used."""


@dataclass
class StopSignal:
    """SIGTERM and SIGINT: before training they end the process at once, in training at the next step boundary."""

    number: int = 0
    training: bool = field(default=False)

    def install(self) -> None:
        """Take both signals."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._handle)

    def __call__(self) -> bool:
        """Tell whether one has come."""
        return self.number != 0

    def exit_code(self) -> ExitCode:
        """Return 130 after SIGINT, 143 otherwise."""
        return ExitCode.INTERRUPTED if self.number == signal.SIGINT else ExitCode.STOPPED

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self.training:
            raise SystemExit(128 + number)
        self.number = number


@dataclass(frozen=True, slots=True)
class Settings:
    """What the environment says."""

    job_file: Path
    allocation_file: Path | None
    report_file: Path | None
    events_file: Path | None
    checkpoint_folder: Path | None
    agent_url: str | None
    time_scale: float
    seed: int | None

    @classmethod
    def from_environment(cls, variables: Mapping[str, str]) -> Settings:
        """Read the variables; `SettingsError` names the one that cannot be used."""

        def path(name: str) -> Path | None:
            return Path(variables[name]) if variables.get(name) else None

        job_file = path(environment.JOB_FILE)
        if job_file is None:
            raise SettingsError(f"{environment.JOB_FILE} is not set; it names the job file (YAML or JSON)")
        return cls(
            job_file=job_file,
            allocation_file=path(environment.ALLOCATION_FILE),
            report_file=path(environment.REPORT_FILE),
            events_file=path(environment.EVENTS_FILE),
            checkpoint_folder=path(environment.CHECKPOINT_DIR),
            agent_url=variables.get(environment.AGENT_URL) or None,
            time_scale=_time_scale(variables.get(environment.TIME_SCALE) or "1"),
            seed=_seed(variables.get(environment.SEED)),
        )


def main() -> int:
    """Run the job that the environment names; returns the exit code."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    stop = StopSignal()
    stop.install()
    try:
        settings = Settings.from_environment(os.environ)
        job = load_job(settings.job_file)
        return int(train(settings, job, stop))
    except JobFileError as error:
        for problem in error.problems:
            print(problem, file=sys.stderr)
        return int(ExitCode.INVALID)
    except TrainerError as error:
        print(error, file=sys.stderr)
        return int(ExitCode.INVALID)


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


def _time_scale(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise SettingsError(f"{environment.TIME_SCALE} is {text!r}; it must be a number above 0")
    return value


def _seed(text: str | None) -> int | None:
    if not text:
        return None
    if not text.isdecimal() or int(text) >= 2**32:
        raise SettingsError(f"{environment.SEED} is {text!r}; it must be a whole number from 0 to 2^32 - 1")
    return int(text)
