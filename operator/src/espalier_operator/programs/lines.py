"""The values in lines of a program's output."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

from espalier_core.types.program import LogProgress, compile_pattern
from espalier_operator.programs.reading import number_of

MAX_LINE_BYTES: Final = 4096
"""Longer lines are not read."""
_ENDS: Final = re.compile(rb"[\r\n]+")


def lines_of(data: bytes) -> Iterator[str]:
    """Yield the lines of a piece of output; a progress bar that returns to the start of its line writes one each time.

    Bytes that are no UTF-8 are replaced. Longer lines than `MAX_LINE_BYTES` are left out.
    """
    for raw in _ENDS.split(data):
        if 0 < len(raw) <= MAX_LINE_BYTES:
            yield raw.decode("utf-8", errors="replace")


class LineReader:
    """Reads the values of a line, as a job's `progress.log` says."""

    def __init__(self, log: LogProgress) -> None:
        """Compile the pattern; `ValueError` if that is not possible."""
        self._pattern: Any = None if log.pattern is None else compile_pattern(log.pattern)
        self._keys = log.json_lines or {}

    def values(self, lines: Iterable[str]) -> dict[str, float]:
        """Return the newest value of each name in `lines`, oldest line first; what is no number is left out."""
        found: dict[str, float] = {}
        for line in lines:
            found.update(self._of_line(line))
        return found

    def _of_line(self, line: str) -> dict[str, float]:
        given = self._matched(line) if self._pattern is not None else self._of_json(line)
        numbers = ((name, number_of(value)) for name, value in given.items())
        return {name: number for name, number in numbers if number is not None}

    def _matched(self, line: str) -> dict[str, Any]:
        match = self._pattern.search(line)
        return {} if match is None else match.groupdict()

    def _of_json(self, line: str) -> dict[str, Any]:
        if not line.lstrip().startswith("{"):
            return {}
        try:
            document = json.loads(line)
        except (ValueError, RecursionError):
            return {}
        return {name: document[key] for name, key in self._keys.items() if key in document}
