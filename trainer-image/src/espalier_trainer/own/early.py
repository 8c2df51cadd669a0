"""A script of a job that raises before it has joined: nobody else could report why it ended."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import uuid
from typing import Final

from espalier_api import environment
from espalier_api.validation import JobFileError, load_job
from espalier_trainer.causes import ending_of, report_of
from espalier_trainer.contracts import connected
from espalier_trainer.errors import TrainerError
from espalier_trainer.settings import Settings

logger = logging.getLogger(__name__)

_OF_A_JOB: Final = (
    environment.JOB_FILE,
    environment.ALLOCATION_FILE,
    environment.REPORT_FILE,
    environment.RENDEZVOUS,
    environment.WORKER_ROLE,
    environment.JOB_NAME,
)
"""If one of these is set, the process was started for a job."""


def is_of_a_job() -> bool:
    """Return whether this process was started for a job."""
    return any(os.environ.get(name) for name in _OF_A_JOB)


def leads() -> bool:
    """Return whether this process will lead its job, or has none. Raises `SettingsError`."""
    return not is_of_a_job() or Settings.from_environment(os.environ).leads


class Watch:
    """Reports, at the end of the process, the exception that ended the script before it had joined."""

    def __init__(self) -> None:
        self.joined = False

    def begin(self) -> None:
        """Watch this process, if it is of a job."""
        if is_of_a_job():
            atexit.register(self._exit)

    def _exit(self) -> None:
        error = getattr(sys, "last_value", None)
        if self.joined or error is None:
            return
        ending = ending_of(error, stepped=False)
        try:
            settings = Settings.from_environment(os.environ)
            if not settings.leads:
                return
            job = load_job(settings.job_file, resource=None)
            with connected(settings, job) as contracts:
                name = settings.incarnation or uuid.uuid4().hex
                report = report_of(ending, job.key, name, settings.attempt, contracts.used_seconds)
                contracts.reporter.publish(lambda: report, urgent=True)
        except (TrainerError, JobFileError, OSError) as problem:
            logger.warning("the cause cannot be reported: %s", problem)


WATCH: Final = Watch()
