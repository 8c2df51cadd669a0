"""Environment variables and signals of a trainer process. Imports no torch, so that it is fast."""

from __future__ import annotations

import math
import os
import signal
import socket
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Final

from espalier_core.types import environment
from espalier_core.types.environment import ExitCode, Role
from espalier_trainer.errors import TrainerError

SIGNALLED: Final = 128
"""Base of the exit code of a process that ends by a signal, to which the signal's number is added."""


class SettingsError(TrainerError):
    """An environment variable is missing or has a value that cannot be used."""


@dataclass
class StopSignal:
    """Handler of SIGTERM and SIGINT, which end the process: before training at once, then at a step boundary."""

    number: int = 0
    training: bool = field(default=False)

    def install(self) -> None:
        """Handle both signals."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._handle)

    def __call__(self) -> bool:
        """Return whether a signal has arrived."""
        return self.number != 0

    def exit_code(self) -> ExitCode:
        """Return 130 after SIGINT, 143 otherwise."""
        return ExitCode.INTERRUPTED if self.number == signal.SIGINT else ExitCode.STOPPED

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.number = number
        if not self.training:
            raise SystemExit(SIGNALLED + number)


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Meeting place of a job's workers, and the key that proves their membership."""

    place: str
    """`host:port` of the leader, or the path of a file into which the leader writes its address and a key."""
    key_file: Path | None = None
    """File with the job's key, where `place` is not a file."""
    attempt: int = 0
    """Attempt of the leader that opens it: how often it was replaced before."""


@dataclass(frozen=True, slots=True)
class TrainerSettings:
    """Settings from the environment."""

    job_file: Path
    allocation_file: Path | None
    report_file: Path | None
    events_file: Path | None
    checkpoint_folder: Path | None
    agent_url: str | None
    time_scale: float
    seed: int | None
    job_key: str | None
    """`namespace/name` of the job to watch at its API server."""
    report_config_map: str | None
    """ConfigMap, in the job's namespace, for reports."""
    incarnation: str
    """Name of the leader in reports; generated if empty."""
    job_uid: str
    """UID of the job at its API server; empty if unknown."""
    attempt: int | None
    """Number of times that this worker was replaced before; None if unknown."""
    role: Role
    index: int
    agent_token_file: Path | None = None
    """File with the token that proves to the agent which job reports; None for reports without proof."""
    rendezvous: Rendezvous | None = None
    """Meeting place of the job's workers; None if each is alone."""
    node: str = ""
    """Node that this worker runs on."""
    gpu_type: str = ""
    """GPU type of the job's workers; empty if unknown."""
    log_to: str = ""
    """Additional destination of figures: `tensorboard`, `wandb` or `mlflow`; empty for none."""
    traces_endpoint: str | None = None
    """Endpoint to which spans of signals are exported; None for none."""
    metrics_port: int | None = None
    """Port at which the leader's metrics can be scraped; None for none."""

    @property
    def leads(self) -> bool:
        """Whether this worker leads: base worker 0."""
        return self.role is Role.BASE and self.index == 0

    @classmethod
    def from_environment(cls, variables: Mapping[str, str]) -> TrainerSettings:
        """Read the variables; `SettingsError` names a variable that cannot be used."""

        def path(name: str) -> Path | None:
            return Path(variables[name]) if variables.get(name) else None

        job_file = path(environment.JOB_FILE)
        if job_file is None:
            raise SettingsError(f"{environment.JOB_FILE} is not set; it names the job file (YAML or JSON)")
        attempt = _whole(variables, environment.ATTEMPT, range(2**31), "a whole number from 0")
        return cls(
            job_file=job_file,
            allocation_file=path(environment.ALLOCATION_FILE),
            report_file=path(environment.REPORT_FILE),
            events_file=path(environment.EVENTS_FILE),
            checkpoint_folder=path(environment.CHECKPOINT_DIR),
            agent_url=variables.get(environment.AGENT_URL) or None,
            time_scale=_time_scale(variables.get(environment.TIME_SCALE) or "1"),
            seed=_whole(variables, environment.SEED, range(2**32), "a whole number from 0 to 2^32 - 1"),
            job_key=_job_key(variables),
            report_config_map=variables.get(environment.REPORT_CONFIG_MAP) or None,
            incarnation=variables.get(environment.INCARNATION, ""),
            job_uid=variables.get(environment.JOB_UID, ""),
            attempt=attempt,
            role=_role(variables.get(environment.WORKER_ROLE) or Role.BASE),
            index=_whole(variables, environment.WORKER_INDEX, range(2**63), "a whole number from 0") or 0,
            agent_token_file=path(environment.AGENT_TOKEN_FILE),
            rendezvous=None
            if not variables.get(environment.RENDEZVOUS)
            else Rendezvous(variables[environment.RENDEZVOUS], path(environment.RENDEZVOUS_KEY_FILE), attempt or 0),
            node=variables.get(environment.NODE) or socket.gethostname(),
            gpu_type=variables.get(environment.GPU_TYPE, "")[:63],  # as long as a label
            log_to=variables.get(environment.LOG_TO, ""),
            traces_endpoint=variables.get(environment.TRACES_ENDPOINT) or None,
            metrics_port=_whole(variables, environment.METRICS_PORT, range(1, 65536), "a port, from 1 to 65535"),
        )


def require_scratch() -> None:
    """Raise `SettingsError` where no temporary file can be made: importing torch would fail with another error."""
    try:
        tempfile.gettempdir()
    except FileNotFoundError as error:
        raise SettingsError(
            f"{error.strerror}, and torch needs one; where the root file system is read-only, mount an emptyDir at /tmp"
        ) from error


def _time_scale(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise SettingsError(f"{environment.TIME_SCALE} is {text!r}; it must be a number above 0")
    return value


def _whole(variables: Mapping[str, str], name: str, allowed: range, what: str) -> int | None:
    text = variables.get(name)
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and int(text) in allowed):
        raise SettingsError(f"{name} is {text!r}; it must be {what}")
    return int(text)


def _job_key(variables: Mapping[str, str]) -> str | None:
    name, namespace = variables.get(environment.JOB_NAME), variables.get(environment.JOB_NAMESPACE)
    if not (name or namespace):
        return None
    if not (name and namespace):
        missing = environment.JOB_NAMESPACE if name else environment.JOB_NAME
        raise SettingsError(f"{missing} is not set; {environment.JOB_NAME} and {environment.JOB_NAMESPACE} go together")
    return f"{namespace}/{name}"


def _role(text: str) -> Role:
    try:
        return Role(text)
    except ValueError:
        raise SettingsError(f"{environment.WORKER_ROLE} is {text!r}; it must be {' or '.join(Role)}") from None


class TermSignal:
    """Handler of SIGTERM: ends the process at once, as done (exit code 0), or if it takes part at a step boundary."""

    def __init__(self) -> None:
        self.takes_part = self.asked = False

    def install(self) -> None:
        """Install the handler."""
        signal.signal(signal.SIGTERM, self._handle)

    def __call__(self) -> bool:
        """Return whether SIGTERM has arrived."""
        return self.asked

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self.takes_part:
            # Not by an exception: an import may swallow it, and unloading torch takes a while.
            os._exit(0)
        self.asked = True
