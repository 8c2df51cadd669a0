"""The trainer process: a job file and a few environment variables in, an exit code out.

What a backend sets is named in `espalier_core.types.environment`. stdout is not used; logs go to stderr.
"""

from __future__ import annotations

import logging
import os
import sys

from espalier_core.types.environment import ExitCode
from espalier_core.types.reasons import Reason
from espalier_core.types.report import TrainerPhase
from espalier_core.validation.reading import JobFileError, load_job
from espalier_trainer.errors import SupersededError, TrainerError
from espalier_trainer.launch.worker import work
from espalier_trainer.process.settings import Settings, StopSignal, require_scratch
from espalier_trainer.process.term_signal import Leave
from espalier_trainer.run.contracts import report_early


def main() -> int:
    """Run the job that the environment names; returns the exit code."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    stop = StopSignal()
    stop.install()
    job = None
    try:
        settings = Settings.from_environment(os.environ)
        leave = Leave()
        if not settings.leads:
            leave.install()
        # The trainer does not know the cluster's GPU resource; the operator has checked the template.
        job = load_job(settings.job_file, resource=None)
        require_scratch()
        if not settings.leads:
            work(settings, job, leave)
        # Imported here: torch takes seconds, and a job file with a mistake should not have to wait for it.
        from espalier_trainer.launch.session import train

        return int(train(settings, job, stop))
    except JobFileError as error:
        for problem in error.problems:
            print(problem, file=sys.stderr)
    except SupersededError as error:
        print(error, file=sys.stderr)
        return int(ExitCode.SUPERSEDED)
    except TrainerError as error:
        print(error, file=sys.stderr)
        if job is not None:
            report_early(settings, job, TrainerPhase.FAILED, Reason.INVALID_SPEC, str(error))
    return int(ExitCode.INVALID)
