"""A worker that does not lead: it takes part in the leader's training, or waits, warm, where the job wants no more.

It neither reports nor checkpoints.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from typing import NoReturn

from espalier_core.types.job import AdaptiveTrainingJob
from espalier_trainer.process.settings import Settings
from espalier_trainer.process.term_signal import Leave

logger = logging.getLogger(__name__)


def work(settings: Settings, job: AdaptiveTrainingJob, leave: Leave) -> NoReturn:
    """Import what the job's training needs; take part in it, where it is elastic; then wait for a signal.

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
        leave.takes_part = True  # not before: what only loads is needed by nobody, and ends at once
        follower.run(settings.rendezvous)
        leave.takes_part = False  # from here on a signal ends it at once; an earlier one takes effect now
        if leave.asked:
            os._exit(0)
    while True:
        signal.pause()
