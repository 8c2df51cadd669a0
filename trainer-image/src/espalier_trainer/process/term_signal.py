"""SIGTERM to a worker that does not lead."""

from __future__ import annotations

import os
import signal
from types import FrameType


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
