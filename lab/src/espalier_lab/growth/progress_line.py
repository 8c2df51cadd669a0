"""The progress of a long command, in one line on stderr."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import ClassVar

import click


@dataclass
class ProgressLine:
    """A line that is rewritten on a terminal; elsewhere, a new line every few seconds."""

    EVERY_SECONDS: ClassVar[float] = 10.0
    what: str
    """Name of the counted things: `runs`."""
    _last: float | None = None

    def __call__(self, done: int, total: int, left_seconds: float | None) -> None:
        """Show the progress; `left_seconds` is None if unknown."""
        terminal = sys.stderr.isatty()
        now = time.monotonic()
        if not terminal and self._last is not None and now - self._last < self.EVERY_SECONDS and done < total:
            return
        self._last = now
        left = "" if left_seconds is None else ", about {} min {:02} s left".format(*divmod(round(left_seconds), 60))
        line = f"{done}/{total} {self.what}{left}"
        click.echo(f"\r{line:<60}" if terminal else line, nl=not terminal or done == total, err=True)
