"""Progress for people: a line on stderr every few seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import ClassVar

import click


class ProgressLines:
    """Prints where it is time to, and when all is done."""

    EVERY_SECONDS: ClassVar[float] = 5.0

    def __init__(self) -> None:
        self._began = self._last = time.monotonic()

    def tell(self, done: int, of: int, line: Callable[[float], str]) -> None:
        """Print the line for this many seconds since the beginning, or nothing while the last one is fresh."""
        now = time.monotonic()
        if now - self._last < self.EVERY_SECONDS and done < of:
            return
        self._last = now
        click.echo(line(now - self._began), err=True)
