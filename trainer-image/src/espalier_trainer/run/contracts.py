"""Connection of a trainer process with its scheduler: by files, or by the API server of its cluster."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

from espalier_core.types import environment
from espalier_core.types.allocation import Allocation
from espalier_core.types.job import AdaptiveTrainingJob
from espalier_core.types.reasons import Reason
from espalier_core.types.report import Report, TrainerPhase
from espalier_trainer.errors import TrainerError
from espalier_trainer.process.settings import SettingsError, TrainerSettings
from espalier_trainer.signals.report import EventLog, FileReporter, Reporter, previous_used_seconds
from espalier_trainer.signals.scheduler import AllocationFileSource, AllocationSource

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Contracts:
    """Sources of a trainer's allocations, and destination of its reports."""

    sources: tuple[AllocationSource, ...]
    reporter: Reporter
    used_seconds: float
    """Seconds of the budget that earlier incarnations reported."""
    superseded: Callable[[], str] = lambda: ""
    """Returns why this leader must end because a later one has reported; '' while none has."""


@contextmanager
def connected(
    settings: TrainerSettings, job: AdaptiveTrainingJob, heard: Callable[[Allocation], None] = lambda allocation: None
) -> Iterator[Contracts]:
    """Connect to files, or the job's API server, or both, as the settings name them.

    `heard` is called with each allocation as soon as it arrives, by any thread. Where an API server is named but cannot
    be used (a pod without a token), only the files are used. On leaving, the last report is being sent, or was given
    up.
    """
    files = (
        () if settings.allocation_file is None else (AllocationFileSource(settings.allocation_file, job, heard=heard),)
    )
    reported = previous_used_seconds(settings.report_file, job.key)
    reporter: Reporter = FileReporter(settings.report_file, settings.events_file)
    if settings.job_key is None:
        yield Contracts(files, reporter, reported)
        return
    if settings.job_key != job.key:
        raise SettingsError(
            f"{environment.JOB_NAMESPACE} and {environment.JOB_NAME} say {settings.job_key!r}, "
            f"but the job of {settings.job_file} is {job.key!r}"
        )
    if settings.report_file is None and settings.events_file is None:
        reporter = EventLog()
    # Imported here: it takes a tenth of a second, and a trainer without a cluster does not need it.
    from espalier_trainer import kube

    try:
        api = kube.connect()
    except kube.NoAccessError as error:
        logger.info("the API server cannot be used (%s); nothing is reported to it", error)
        logger.info("allocations come from %s", settings.allocation_file)
        yield Contracts(files, reporter, reported)
        return
    with ExitStack() as stack:
        stack.callback(api.close)
        watch = kube.JobWatch(api, job, heard)
        stack.callback(watch.close)
        watch.start()
        if settings.report_config_map is None:
            yield Contracts((watch, *files), reporter, reported)
            return
        patcher = kube.ConfigMapReporter(
            api,
            job.metadata.namespace,
            settings.report_config_map,
            reporter,
            attempt=settings.attempt,
            job_uid=settings.job_uid,
        )
        stack.callback(patcher.close)
        patcher.start()
        used = max(reported, patcher.previous_used_seconds(job))
        yield Contracts((watch, *files), patcher, used, patcher.superseded)


def early_report(
    job: str,
    incarnation: str,
    attempt: int | None,
    used_seconds: float,
    phase: TrainerPhase = TrainerPhase.STARTING,
    reason: Reason | None = None,
    message: str = "",
) -> Report:
    """Return the report of a leader of `job` without a model: that it starts, or why it failed."""
    return Report(
        job=job,
        incarnation=incarnation,
        attempt=attempt,
        phase=phase,
        reason=reason,
        message=message,
        used_seconds=used_seconds,
        updated_time=datetime.now(UTC),
    )


def report_early(
    settings: TrainerSettings,
    job: AdaptiveTrainingJob,
    phase: TrainerPhase = TrainerPhase.STARTING,
    reason: Reason | None = None,
    message: str = "",
) -> None:
    """Send an early report if this process leads, while nothing else is connected; log a warning where that fails."""
    if not settings.leads:
        return
    name = settings.incarnation or uuid.uuid4().hex
    try:
        with connected(settings, job) as contracts:
            report = early_report(job.key, name, settings.attempt, contracts.used_seconds, phase, reason, message)
            contracts.reporter.publish(lambda: report, urgent=True)
    except (TrainerError, OSError) as problem:
        logger.warning("%s cannot be reported: %s", phase, problem)
