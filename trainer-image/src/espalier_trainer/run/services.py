"""Services of a run: its scheduler, agent, reports, checkpoints, other workers and process."""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from espalier_core.types import environment
from espalier_core.types.job import AdaptationMode, AdaptiveTrainingJob, Stragglers
from espalier_trainer.checkpoints.store import CheckpointStore
from espalier_trainer.elastic.states import digest
from espalier_trainer.elastic.team import Team
from espalier_trainer.errors import CheckpointFolderError
from espalier_trainer.growth.advisor import Advisor, Cancelled, FallbackPolicy, HTTPAdvisor, NoAgent, WithFallback
from espalier_trainer.growth.forecasting import Forecaster
from espalier_trainer.process.fencing import Fence, LeaderClaim
from espalier_trainer.process.settings import TrainerSettings
from espalier_trainer.run.contracts import connected
from espalier_trainer.run.journal import RunJournal
from espalier_trainer.signals.metrics import LoggedReporter, MeteredReporter, opened, served
from espalier_trainer.signals.report import MemoryReporter, Reporter
from espalier_trainer.signals.scheduler import DocumentScheduler, Scheduler
from espalier_trainer.signals.traces import SignalSpans, exporter_to
from espalier_trainer.training.network import Network

logger = logging.getLogger(__name__)


SMALL_MODEL_PARAMETERS = 100_000
"""Number of parameters below which a step on the CPU is too short for several threads. Measured with the digits net on
two cores: 1.5 ms a step with one thread and with two on an idle machine; on a busy machine 7 ms with one thread and 12
to 50 ms with two, which wait for each other."""

_NEVER_WRITABLE = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST}
"""Errors that only a change of the job can fix."""

TeamMaker = Callable[[RunJournal], Team]
"""Function that makes the team of workers that train together, given the run's journal."""


@dataclass(frozen=True, slots=True)
class Services:
    """Connections of a run. By default it runs alone and in memory."""

    scheduler: Scheduler
    reporter: Reporter = field(default_factory=MemoryReporter)
    advisor: Advisor | None = None
    """Advisor on growth; None if the network does not grow."""
    checkpoints: CheckpointStore | None = None
    """Store of checkpoints; None to keep none."""
    team: TeamMaker | None = None
    """Function that makes the team; None if this worker trains alone."""
    stop: Cancelled = lambda: False
    """Called at each step boundary; once it returns True, the run is saved and ends as `Stopped`."""
    used_seconds: float = 0.0
    """Budget seconds that earlier incarnations reported."""
    incarnation: str = ""
    """Name of the process in reports; generated if empty."""
    attempt: int | None = None
    """Number of times that the leader was replaced before; None if unknown."""
    superseded: Callable[[], str] = lambda: ""
    """Returns why this leader must end because a later one has taken over; '' while none has."""
    step_took: Callable[[float], None] = lambda seconds: None
    """Called with the wall seconds between the ends of two optimizer steps."""
    log_to: Callable[[Any], None] = lambda target: None
    """Called with another destination for the figures of the run (`metrics.LoggedReporter`)."""
    gpu_type: str = ""
    """GPU type of the workers; empty if unknown."""
    spans: SignalSpans = field(default_factory=SignalSpans)
    """Traces of the handling of allocations."""
    forecaster: Forecaster | None = None
    """Forecaster of the gain of growing; None without an agent."""
    clock: Callable[[], float] = time.monotonic


@contextmanager
def connect(
    settings: TrainerSettings,
    job: AdaptiveTrainingJob,
    stop: Cancelled,
    device: torch.device,
    seed: int,
    *,
    grows: bool = True,
    hashed: Callable[[Network], int] = digest,
) -> Iterator[Services]:
    """Connect a leader to the services that the settings and the job name.

    With `grows` False, no agent is used. `hashed` returns the value that must be equal in all workers. Raises
    `TrainerError` for errors that the job's author can fix, and `SupersededError` if a later leader has taken over.
    """
    incarnation = settings.incarnation or uuid.uuid4().hex
    claim = LeaderClaim(job_uid=settings.job_uid, attempt=settings.attempt or 0, incarnation=incarnation)
    checkpoints = open_checkpoints(job, settings.checkpoint_folder, claim)
    with ExitStack() as stack:
        spans = SignalSpans()
        if settings.traces_endpoint is not None:
            spans.emit, end = exporter_to(settings.traces_endpoint, _of_leader(settings, job, incarnation))
            stack.callback(end)
        contracts = stack.enter_context(connected(settings, job, spans.heard))
        logged = LoggedReporter(contracts.reporter)
        stack.callback(logged.close)
        if settings.log_to:
            logged.add(opened(settings.log_to, checkpoints.folder.parent, job.metadata.name), close=True)
        scheduler = DocumentScheduler(contracts.sources, job, settings.time_scale)
        reporter = MeteredReporter(logged, scheduler.time_budget)
        if settings.metrics_port is not None:
            stack.enter_context(served(reporter.metrics, settings.metrics_port))
        agent = build_agent(job, settings.agent_url, stop, settings.agent_token_file) if grows else None
        if agent is not None:
            stack.callback(agent.close)
        yield Services(
            scheduler=scheduler,
            reporter=reporter,
            advisor=with_fallback(agent, job, seed) if grows else None,
            forecaster=None if agent is None else agent.forecast,
            checkpoints=checkpoints,
            team=team_of(settings, job, device, hashed),
            stop=stop,
            used_seconds=contracts.used_seconds,
            incarnation=incarnation,
            attempt=settings.attempt,
            superseded=contracts.superseded,
            step_took=reporter.step_took,
            log_to=logged.add,
            gpu_type=settings.gpu_type,
            spans=spans,
        )


def _of_leader(settings: TrainerSettings, job: AdaptiveTrainingJob, incarnation: str) -> dict[str, str | int | float]:
    """Return the attributes of all spans of a leader, named as the operator names them."""
    known = {
        "k8s.namespace.name": job.metadata.namespace,
        "k8s.node.name": settings.node,
        "espalier.job.name": job.metadata.name,
        "espalier.job.uid": settings.job_uid,
        "espalier.leader.incarnation": incarnation,
    }
    return {name: value for name, value in known.items() if value}


def seed_of(settings: TrainerSettings, job: AdaptiveTrainingJob) -> int:
    """Return the seed: the environment's, otherwise the job's."""
    return job.spec.training.seed if settings.seed is None else settings.seed


def set_threads(model: nn.Module, device: torch.device) -> None:
    """Use one thread for a small model on the CPU, unless the environment sets a number."""
    parameters = sum(parameter.numel() for parameter in model.parameters())
    if device.type == "cpu" and parameters < SMALL_MODEL_PARAMETERS and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)


def team_of(
    settings: TrainerSettings, job: AdaptiveTrainingJob, device: torch.device, hashed: Callable[[Network], int]
) -> TeamMaker | None:
    """Return the function that makes the team of the job's workers; None if each trains alone."""
    training = job.spec.training
    rendezvous, stragglers = settings.rendezvous, training.stragglers or Stragglers.REPORT
    if rendezvous is None or training.elastic_batch is None:
        return None
    return lambda journal: Team(
        rendezvous,
        device,
        journal.warn,
        journal.workers_changed,
        node=settings.node,
        stragglers=stragglers,
        hashed=hashed,
    )


def open_checkpoints(
    job: AdaptiveTrainingJob, folder: Path | None, claim: LeaderClaim | None = None
) -> CheckpointStore:
    """Return the store in `folder`, or in the job's folder, claimed by the leader of `claim`.

    Raises `CheckpointFolderError` if it cannot be written, and `SupersededError` if a later leader has claimed it. A
    disk that is full or temporarily unavailable raises no error: training continues without checkpoints.
    """
    path = folder or Path(job.spec.checkpoint.path)
    fence = None if claim is None else Fence(path, claim)
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
        if fence is not None:
            fence.take_over()
    except OSError as error:
        if error.errno in _NEVER_WRITABLE:
            where = "spec.checkpoint.path" if folder is None else environment.CHECKPOINT_DIR
            raise CheckpointFolderError(
                f"{where}: {path} cannot be written by user {os.getuid()} ({error.strerror}); mount a volume there "
                "that this user may write (securityContext.fsGroup in spec.template), or name another folder"
            ) from error
        logger.warning("%s: %s; checkpoints may fail", path, error.strerror)
    return CheckpointStore(path, fence)


def build_agent(
    job: AdaptiveTrainingJob, default_url: str | None, stop: Cancelled, token_file: Path | None = None
) -> HTTPAdvisor | None:
    """Return the job's agent: its own, or the installation's; None in mode Off, and where none is known.

    `token_file` contains the job's token for the installation's agent; it is sent to no other.
    """
    url = job.spec.adaptation.agent_url(default_url)
    if url is None:
        return None
    return HTTPAdvisor(url, stop, token_file if url == default_url else None)


def with_fallback(agent: Advisor | None, job: AdaptiveTrainingJob, seed: int) -> Advisor | None:
    """Return the advisor on the job's growth: its agent, otherwise only the fallback; None in mode Off."""
    if job.spec.adaptation.mode is AdaptationMode.OFF:
        return None
    return WithFallback(agent or NoAgent(), FallbackPolicy(job.spec.adaptation.fallback, seed))


_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
"""Parameters of glibc's `mallopt` (malloc.h)."""
_MOST_KEPT: Final = 2**31 - 1
_LARGEST: Final = 32 << 20
"""Largest allocation, in bytes, that glibc can be set to take from the heap."""
_OF_THE_USER: Final = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def keep_freed(device: torch.device) -> bool:
    """Let glibc keep freed memory for the next step, which needs as much again; return whether it will.

    By default it returns the gradients' memory to the system at each step, which provides it again page by page, filled
    with zeros: measured with 5 million parameters on two workers, 1,700 and 9,600 page faults a step, and a fifth of
    the throughput. So the process stays at its maximum size. A device has its own allocator; the user's settings
    (mallopt(3)) stay.
    """
    mallopt: Callable[[int, int], int] | None = getattr(ctypes.CDLL(None), "mallopt", None)
    if device.type != "cpu" or mallopt is None or any(os.environ.get(name) for name in _OF_THE_USER):
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _LARGEST)) and bool(mallopt(_TRIM_THRESHOLD, _MOST_KEPT))
