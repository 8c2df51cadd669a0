"""The cause of an end in one sentence, extracted from Python's printed tracebacks."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

_BEGIN: Final = "Traceback (most recent call last):"
_FRAME: Final = re.compile(r'\s+File "(.+)", line (\d+)(?:, in (.+))?\s*\Z')
_EXCEPTION: Final = re.compile(r"[A-Za-z_][\w.]*(?:: .*)?\Z")
_LIBRARIES: Final = re.compile(
    r"/site-packages/|/dist-packages/|/lib/python3[.\d]*/|/espalier_(?:core|operator|trainer|agent|cli|lab)/|\A<"
)
"""Frames in files that the author of a job has not written."""
MAX_CAUSE: Final = 1000
"""Maximum length of a cause, in characters."""
_MAX_LINES: Final = 300
"""Maximum length of a message of several lines when joined into one, in characters."""
_LINKS: Final = frozenset(
    {
        "During handling of the above exception, another exception occurred:",
        "The above exception was the direct cause of the following exception:",
    }
)
"""Lines that Python prints between two tracebacks."""


def in_one_line(text: str) -> str:
    """Return the lines of a message as one line, cut at 300 characters."""
    first, *rest = [line.strip() for line in text.splitlines() if line.strip()] or [""]
    if not rest:
        return first
    whole = " ".join((first, *rest))
    return whole if len(whole) <= _MAX_LINES else f"{whole[: max(_MAX_LINES, len(first)) - 3]}..."


def cause_in(log: str, *, ends_with_it: bool = False) -> str:
    """Return the cause at the end of a log: `Type: message (file:line, in function)`.

    It is the last exception that was printed with its traceback, or else the last line; '' for an empty log. In a
    message of several lines, only those indented or after a colon count; all if the log `ends_with_it`.
    """
    blocks = _blocks(log.splitlines())
    raised = next((text for block in reversed(blocks) if (text := _exception(block, whole=ends_with_it))), "")
    if raised:
        place = _place(blocks)
        return f"{_shortened(raised)} ({place})" if place else _shortened(raised)
    return _shortened(next((line.strip() for line in reversed(log.splitlines()) if line.strip()), ""))


def place_in(log: str) -> str:
    """Return the innermost `file:line, in function` of the user's code in a log's tracebacks; '' if there is none."""
    return _place(_blocks(log.splitlines()))


def _blocks(lines: Iterable[str]) -> list[list[str]]:
    """Return the lines after each traceback's head. The head of the first may be cut off."""
    blocks: list[list[str]] = []
    for line in lines:
        if line.strip() == _BEGIN:
            blocks.append([])
        elif blocks:
            blocks[-1].append(line)
        elif _FRAME.match(line):
            blocks.append([line])
    return blocks


def _exception(block: list[str], *, whole: bool) -> str:
    """Return the line that names the exception, the first without indentation, with the rest of its message."""
    begin = next((place for place, line in enumerate(block) if line and not line[0].isspace()), None)
    if begin is None or not _EXCEPTION.match(block[begin]):
        return ""
    lines = [block[begin]]
    for line in block[begin + 1 :]:
        belongs = line[:1].isspace() or lines[-1].rstrip().endswith(":")
        if line.strip() in _LINKS or not (whole or (line.strip() and belongs)):
            break
        lines.append(line)
    return in_one_line("\n".join(lines))


def _place(blocks: list[list[str]]) -> str:
    """Return the user's innermost frame: in the last exception, or else in one that it was raised from."""
    for block in reversed(blocks):
        for line in reversed(block):
            frame = _FRAME.match(line)
            if frame is not None and not _LIBRARIES.search(frame[1]):
                function = f", in {frame[3]}" if frame[3] and frame[3] != "<module>" else ""
                return f"{frame[1]}:{frame[2]}{function}"
    return ""


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_CAUSE else f"{text[: MAX_CAUSE - 3]}..."
