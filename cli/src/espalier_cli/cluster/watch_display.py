"""How a watched job is shown: a live table under its news on a terminal, plain lines or JSON lines elsewhere."""

from __future__ import annotations

import json
import time
from typing import Self

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text

from espalier_cli.cluster.narration import Line
from espalier_cli.display import JobRow, progress_table
from espalier_cli.tables import plain_console
from espalier_core.types.task import accuracy_of


class PlainWatch:
    """Shows one job: a line for all that happens, on stdout."""

    def __init__(self, row: JobRow) -> None:
        self._row = row

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing is open."""

    def update(self, row: JobRow) -> None:
        """Take in how the job is now, for the next line."""
        self._row = row

    def show(self, line: Line) -> None:
        """Print what happened."""
        self.progress(str(line))

    def progress(self, text: str) -> None:
        """Print how training goes, where no table shows it."""
        left = max(0.0, self._row.budget_seconds - self._row.used_seconds)
        click.echo(f"{self._row.name}  {left:7.1f} s left  {text}")

    def note(self, text: str) -> None:
        """Print what is not about the job, but about the connection to the cluster, to stderr."""
        click.echo(text, err=True)


class JsonWatch(PlainWatch):
    """A JSON object a line for all that happens, on stdout."""

    def show(self, line: Line) -> None:
        """Print it with how the job is at that moment."""
        self._print(line.reason, line.message, warning=line.warning)

    def progress(self, text: str) -> None:
        """Print it as reason `Progress`."""
        self._print("Progress", text, warning=False)

    def _print(self, reason: str, message: str, *, warning: bool) -> None:
        row = self._row
        entry = {
            "time": time.time(),
            "job": row.name,
            "phase": row.phase,
            "usedSeconds": round(row.used_seconds, 3),
            "budgetSeconds": row.budget_seconds,
            "gpus": row.gpus,
            "epoch": row.epoch,
            "accuracy": accuracy_of(row.score),
            "score": None if row.score is None else row.score.to_json(),
            "depth": row.depth,
            "reason": reason,
            "message": message,
            "warning": warning,
        }
        click.echo(json.dumps(entry))


class LiveWatch(PlainWatch):
    """A table that is redrawn in place, under the lines of what happens."""

    def __init__(self, row: JobRow, console: Console) -> None:
        super().__init__(row)
        self._console = console
        self._live = Live(
            get_renderable=lambda: progress_table([self._row], console.width), console=console, refresh_per_second=4
        )

    def __enter__(self) -> Self:
        self._live.start(refresh=True)
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()

    def show(self, line: Line) -> None:
        """Print it above the table."""
        moment = Text(f"{self._row.used_seconds:7.1f} s  ", style="dim")
        text = Text(f"{line.reason}: {line.message}", style="yellow" if line.warning else "not dim")
        self._console.print(moment + text, highlight=False)

    def progress(self, text: str) -> None:
        """Nothing: the table shows it."""

    def note(self, text: str) -> None:
        """Print it above the table."""
        self._console.print(Text(text, style="dim"), highlight=False)


def watch_display(row: JobRow, form: str) -> PlainWatch:
    """Return the display for `form` (`text` or `json`) and what stdout is."""
    if form == "json":
        return JsonWatch(row)
    console = plain_console()
    return LiveWatch(row, console) if console.is_terminal else PlainWatch(row)
