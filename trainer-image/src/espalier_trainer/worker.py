"""A worker that does not lead: it imports what training needs, and waits, warm, to be asked to end.

Until workers train together it holds its GPU and nothing else: it neither reports nor checkpoints.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from types import FrameType
from typing import NoReturn

from espalier_api.job import AdaptiveTrainingJob
from espalier_trainer.settings import Settings

logger = logging.getLogger(__name__)


def install_signals() -> None:
    """Let SIGTERM end this process at once, as done (exit code 0): it holds nothing that would have to be put away."""
    signal.signal(signal.SIGTERM, _leave)


def wait(settings: Settings, job: AdaptiveTrainingJob) -> NoReturn:
    """Import what the job's training needs, then wait for a signal.

    Raises `TrainerError` where the job's own code cannot be imported.
    """
    started = time.monotonic()
    from espalier_trainer import session  # torch, and the trainer

    session.warm_up(job.spec.training)
    logger.info(
        "%s worker %d of job %s is ready (imports took %.1f s) and waits",
        settings.role,
        settings.index,
        job.key,
        time.monotonic() - started,
    )
    while True:
        signal.pause()


def _leave(number: int, frame: FrameType | None) -> None:
    # Not by an exception: libraries that are being imported may swallow one, and unloading torch takes a while.
    os._exit(0)
