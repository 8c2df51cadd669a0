"""Figures as tables, progress, and what figures depend on: the machine, versions and the command."""

from __future__ import annotations

import os
import platform
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

Columns = Sequence[tuple[str, str, str]]
"""The heading of each column, and name and format of its figures."""


def share(value: float, places: int = 4) -> str:
    """Return a figure that lies between -1 and 1, without its leading 0."""
    return f"{value:.{places}f}".replace("0.", ".", 1)


def rendered(title: str, head: Sequence[str], rows: Iterable[Sequence[str]], *, markdown: bool = False) -> str:
    """Return a table; its first column is text, the others are figures."""
    lines = [list(head), *(list(row) for row in rows)]
    if markdown:
        rule = ["---", *["---:"] * (len(head) - 1)]
        body = "\n".join("| " + " | ".join(line) + " |" for line in (lines[0], rule, *lines[1:]))
        return f"**{title}**\n\n{body}\n"
    return f"{title}\n" + "".join(f"  {line}\n" for line in aligned(lines))


def columned(title: str, columns: Columns, rows: Iterable[Mapping[str, Any]]) -> str:
    """Return a table of rows whose figures have names."""
    cells = [[format(row[name], form) for _, name, form in columns] for row in rows]
    return rendered(title, [head for head, _, _ in columns], cells)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as lines with columns of equal width: the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join([first.ljust(widths[0]), *(cell.rjust(wide) for cell, wide in zip(cells, widths[1:], strict=True))])
        for first, *cells in rows
    ]


def progress(line: str) -> None:
    """Write a line about the progress to stderr."""
    print(line, file=sys.stderr, flush=True)


def machine() -> str:
    """Return the processor, cores, memory and present load."""
    names = [line.split(":", 1)[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    processor = (names or [platform.machine()])[0]
    return f"{processor}, {os.cpu_count()} cores, {memory:.0f} GiB, load {os.getloadavg()[0]:.1f}"


def versions(*packages: str) -> dict[str, str]:
    """Return the versions of Python and of packages."""
    return {"Python": platform.python_version(), **{name: version(name) for name in packages}}


def environment(*packages: str) -> str:
    """Return the machine and the versions in a line."""
    return f"{machine()}; " + ", ".join(f"{name} {number}" for name, number in versions(*packages).items())


def described(facts: Mapping[str, object]) -> str:
    """Return what figures depend on, a line a fact."""
    texts = {
        name: ", ".join(map(" ".join, fact.items())) if isinstance(fact, dict) else fact for name, fact in facts.items()
    }
    return "\n".join(f"{name:12}{text}" for name, text in texts.items())


def command() -> str:
    """Return the command that is running."""
    return shlex.join(["python", *sys.argv])


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []
