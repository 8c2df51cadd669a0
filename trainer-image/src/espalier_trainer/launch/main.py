"""The trainer process: a job file and a few environment variables in, an exit code out.

Backends set the variables of `espalier_core.types.environment`. stdout is not used; logs go to stderr.

A worker that does not lead takes part in the leader's training; if the job is not elastic, it waits with everything
imported. It neither reports nor checkpoints.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from typing import NoReturn

from espalier_core.types.environment import ExitCode
from espalier_core.types.job import AdaptiveTrainingJob
from espalier_core.types.reasons import Reason
from espalier_core.types.report import TrainerPhase
from espalier_core.validation.reading import JobFileError, load_job
from espalier_trainer.errors import SupersededError, TrainerError
from espalier_trainer.process.settings import StopSignal, TermSignal, TrainerSettings, require_scratch
from espalier_trainer.run.contracts import report_early

logger = logging.getLogger(__name__)


def work(settings: TrainerSettings, job: AdaptiveTrainingJob, leave: TermSignal) -> NoReturn:
    """Import the modules that the job's training needs; take part in it if it is elastic; then wait for a signal.

    Raises `TrainerError` where the job's own code cannot be imported.
    """
    started = time.monotonic()
    from espalier_trainer.launch import session

    session.warm_up(job.spec.training)
    logger.info(
        "%s worker %d of job %s is ready (imports took %.1f s)",
        settings.role,
        settings.index,
        job.key,
        time.monotonic() - started,
    )
    if settings.rendezvous is not None and job.spec.training.elastic_batch is not None:
        follower = session.follower(settings, job, leave)
        leave.takes_part = True  # not before: a worker that is still loading may end at once
        follower.run(settings.rendezvous)
        leave.takes_part = False  # from here on a signal ends it at once; an earlier one takes effect now
        if leave.asked:
            os._exit(0)
    while True:
        signal.pause()


def main() -> int:
    """Run the job that the environment names; return the exit code."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    stop = StopSignal()
    stop.install()
    job = None
    try:
        settings = TrainerSettings.from_environment(os.environ)
        leave = TermSignal()
        if not settings.leads:
            leave.install()
        # The trainer does not know the cluster's GPU resource; the operator has checked the template.
        job = load_job(settings.job_file, resource=None)
        require_scratch()
        if not settings.leads:
            work(settings, job, leave)
        # Imported here: torch takes seconds, and an invalid job file should fail without it.
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
