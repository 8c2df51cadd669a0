"""A script of a job before it has joined: nobody else could report that it starts, and why it ended."""

from __future__ import annotations

import atexit
import logging
import multiprocessing
import os
import sys
from typing import Any, Final

from espalier_core.types import environment
from espalier_core.validation.reading import JobFileError, load_job
from espalier_trainer.errors import TrainerError
from espalier_trainer.process.settings import Settings
from espalier_trainer.run.contracts import report_early
from espalier_trainer.training.causes import ending_of

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
_WATCHED: Final = "_ESPALIER_WATCHED"
"""Of this process and those that it starts: the id of the one that is watched."""


def is_of_a_job() -> bool:
    """Return whether this process was started for a job."""
    return any(os.environ.get(name) for name in _OF_A_JOB)


def leads() -> bool:
    """Return whether this process will lead its job, or has none. Raises `SettingsError`."""
    return not is_of_a_job() or Settings.from_environment(os.environ).leads


class Watch:
    """Reports that the script starts, and at the end of the process the exception that ended it before it had joined.

    So a script that ends before, by whatever code, is known to have trained nothing.
    """

    def __init__(self) -> None:
        self.joined = False

    def begin(self) -> None:
        """Watch this process, if it is of a job, and none that the job's own has started."""
        if is_of_a_job() and _WATCHED not in os.environ and multiprocessing.parent_process() is None:
            os.environ[_WATCHED] = str(os.getpid())
            atexit.register(self._exit)
            self._report()

    def _exit(self) -> None:
        error = getattr(sys, "last_value", None)
        if not self.joined and error is not None and os.environ.get(_WATCHED) == str(os.getpid()):
            ending = ending_of(error, stepped=False)
            self._report(ending.phase, ending.reason, ending.message)

    def _report(self, *said: Any) -> None:
        try:
            settings = Settings.from_environment(os.environ)
            report_early(settings, load_job(settings.job_file, resource=None), *said)
        except (TrainerError, JobFileError) as problem:
            logger.warning("nothing can be reported: %s", problem)


WATCH: Final = Watch()
