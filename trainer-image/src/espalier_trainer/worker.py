"""A worker that does not lead: it takes part in the leader's training, or waits, warm, where the job wants no more.

It neither reports nor checkpoints.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from types import FrameType
from typing import NoReturn

from espalier_core.types.job import AdaptiveTrainingJob
from espalier_trainer.settings import Settings

logger = logging.getLogger(__name__)


class Leave:
    """SIGTERM: ends this process at once, as done (exit code 0), or while it takes part at the next step boundary."""

    def __init__(self) -> None:
        self.takes_part = self.asked = False

    def install(self) -> None:
        """Hear the signal from now on."""
        signal.signal(signal.SIGTERM, self._handle)

    def __call__(self) -> bool:
        """Return whether it has come."""
        return self.asked

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self.takes_part:
            # Not by an exception: libraries that are being imported may swallow one, and unloading torch takes a while.
            os._exit(0)
        self.asked = True


def work(settings: Settings, job: AdaptiveTrainingJob, leave: Leave) -> NoReturn:
    """Import what the job's training needs; take part in it, where it is elastic; then wait for a signal.

    Raises `TrainerError` where the job's own code cannot be imported.
    """
    started = time.monotonic()
    from espalier_trainer import session  # torch, and the trainer

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
