"""Figures as tables, progress, and what figures depend on: the command, the machine, versions and the commit."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

PROJECT: Final = Path(__file__).resolve().parents[2]
PACKAGES: Final = (
    "torch",
    "torchvision",
    "numpy",
    "scikit-learn",
    "timm",
    "transformers",
    "kopf",
    "kubernetes",
    "aiohttp",
)
"""Those on which figures depend."""
Columns = Sequence[tuple[str, str, str]]
"""The heading of each column, and name and format of its figures."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table; its first column is text, the others are figures."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    figures: Sequence[Mapping[str, Any]] = field(default=())
    """The rows' figures as they are, where they have names."""

    @classmethod
    def of(cls, title: str, columns: Columns, rows: Iterable[Mapping[str, Any]]) -> Table:
        """Return a table of rows whose figures have names."""
        figures = list(rows)
        cells = [[_cell(row[name], form) for _, name, form in columns] for row in figures]
        return cls(title, [head for head, _, _ in columns], cells, figures)

    def text(self, *, markdown: bool = False) -> str:
        """Return it as text, with a blank line after it."""
        lines = [list(self.head), *map(list, self.rows)]
        if markdown:
            rule = ["---", *["---:"] * (len(self.head) - 1)]
            body = "\n".join("| " + " | ".join(line) + " |" for line in (lines[0], rule, *lines[1:]))
            return f"**{self.title}**\n\n{body}\n"
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return f"{self.title}\n" + "".join(
            "  " + "  ".join([first.ljust(widths[0]), *map(str.rjust, cells, widths[1:])]).rstrip() + "\n"
            for first, *cells in lines
        )

    def to_json(self) -> dict[str, Any]:
        """Return it for a JSON document; what is no number is null."""
        if self.figures:
            plain = [{name: None if each != each else each for name, each in row.items()} for row in self.figures]
            return {"title": self.title, "rows": plain}
        return {"title": self.title, "columns": list(self.head), "rows": list(map(list, self.rows))}


Parts = Iterator[Table | str | Mapping[str, Any]]
"""What a benchmark gives: tables, lines, and figures for JSON alone."""


def _cell(value: Any, form: str) -> str:
    return "–" if value != value else format(value, form)


def share(value: float, places: int = 4) -> str:
    """Return a figure that lies between -1 and 1, without its leading 0."""
    return f"{value:.{places}f}".replace("0.", ".", 1)


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
    """Return the versions of Python and of those of the packages that are installed."""
    found = {"Python": platform.python_version()}
    for name in packages:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def about(arguments: Sequence[str]) -> dict[str, Any]:
    """Return what figures depend on."""
    commit = ["git", "-C", str(PROJECT), "describe", "--always", "--dirty", "--abbrev=12"]
    said = subprocess.run(commit, capture_output=True, text=True, timeout=60)
    return {
        "command": shlex.join(["python", "-m", "bench", *arguments]),
        "machine": machine(),
        "versions": versions(*PACKAGES),
        "commit": said.stdout.strip() or "not known",
    }


def described(facts: Mapping[str, object]) -> str:
    """Return what figures depend on, a line a fact."""
    texts = {
        name: ", ".join(map(" ".join, fact.items())) if isinstance(fact, dict) else fact for name, fact in facts.items()
    }
    return "\n".join(f"{name:12}{text}" for name, text in texts.items())


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []
