"""A task of `espalier agent judge` that lasts, where its processes can import it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from espalier_core.base import Record
from espalier_lab.growth.judge.case import JudgeCase

LASTS = 600.0
"""Seconds."""


class Done(Record):
    """Nothing came of it."""


@dataclass(frozen=True)
class Lasting:
    """A task that lasts, and makes a file when it has begun."""

    place: int
    began: Path

    def file(self, case: JudgeCase) -> str:
        """Return the file's name."""
        return f"{self.place}.json"

    def record(self) -> type[Done]:
        """Return its class."""
        return Done

    def __call__(self, case: JudgeCase) -> Done:
        """Do it."""
        self.began.touch()
        time.sleep(LASTS)
        return Done()
