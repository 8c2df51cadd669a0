"""What a job's code prints, on the terminal: the new lines of `trainer.log`, but those of the library's own log."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

_LOGGED: Final = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} [A-Z]+ ")
"""The beginning of a line that the trainer has logged: the events on the terminal say the same."""
_MOST: Final = 10
"""Lines that are shown at a time; a script that prints at every step must not bury everything else."""
_MOST_BYTES: Final = 1 << 20


class Prints:
    """Reads the log of one job from where it is now."""

    def __init__(self, job: str, log: Path) -> None:
        self._job, self._log = job, log
        try:
            self._place = log.stat().st_size
        except OSError:  # there is none yet; a folder that cannot be is for whoever makes it to report
            self._place = 0
        self._begun = b""
        """The last line, as long as it has no end."""
        self._shown: set[str] = set()

    def skip(self, text: str) -> None:
        """Take note that `text` is on the terminal already, and need not be shown again."""
        self._shown.add(text)

    def show(self, console: Console, *, ended: bool = False) -> None:
        """Print the lines that have come since; with `ended`, also one that has no end."""
        lines = self._new(ended)
        for line in lines[:_MOST]:
            console.print(Text(f"{self._job}  | {line}"), soft_wrap=True)
        if len(lines) > _MOST:
            console.print(Text(f"{self._job}  | ... {len(lines) - _MOST} more lines in {self._log}"), soft_wrap=True)

    def _new(self, ended: bool) -> list[str]:
        try:
            with self._log.open("rb") as file:
                file.seek(self._place)
                content = file.read(_MOST_BYTES)
        except OSError:
            content = b""
        self._place += len(content)
        *whole, self._begun = (self._begun + content).split(b"\n")
        if ended:
            whole, self._begun = [*whole, self._begun], b""
        texts = (line.decode(errors="replace").rstrip("\r").rpartition("\r")[2].rstrip() for line in whole)
        return [text for text in texts if text and not _LOGGED.match(text) and text not in self._shown]
