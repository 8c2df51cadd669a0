"""The command `espalier watch`.

On a terminal it shows a live table under the events of the job; elsewhere, plain lines or JSON lines.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Self

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text

from espalier_cli.cluster.narration import Line, Narrator, row_of, verdict
from espalier_cli.cluster.options import cluster_options, handle_of, job_argument, namespace_option, output_option
from espalier_cli.display import JobRow, progress_table
from espalier_cli.tables import plain_console
from espalier_core.client.cluster import ClusterHandle
from espalier_core.console import INTERRUPTED, RealRange
from espalier_core.k8s.access import Cluster
from espalier_core.k8s.errors import ForbiddenError, cluster_error
from espalier_core.k8s.jobs import Event, Job
from espalier_core.k8s.reflector import Disconnected, Failed, Reconnected
from espalier_core.types.task import accuracy_of

_EXIT_CODES = """\
Exit codes: 0 the job is complete, 1 it failed, was deleted, or the cluster did not answer, 2 an input cannot be used,
130 interrupted (the job continues)."""


class PlainWatch:
    """Shows one job: a line per event, on stdout."""

    def __init__(self, row: JobRow) -> None:
        self._row = row

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Do nothing: nothing is open."""

    def update(self, row: JobRow) -> None:
        """Update the state of the job for the next line."""
        self._row = row

    def show(self, line: Line) -> None:
        """Print an event."""
        self.progress(str(line))

    def progress(self, text: str) -> None:
        """Print the progress of training, which no table shows."""
        left = max(0.0, self._row.budget_seconds - self._row.used_seconds)
        click.echo(f"{self._row.name}  {left:7.1f} s left  {text}")

    def note(self, text: str) -> None:
        """Print a message about the connection to the cluster, not the job, to stderr."""
        click.echo(text, err=True)


class JsonWatch(PlainWatch):
    """Prints one JSON object per event, on stdout."""

    def show(self, line: Line) -> None:
        """Print the event with the current state of the job."""
        self._print(line.reason, line.message, warning=line.warning)

    def progress(self, text: str) -> None:
        """Print progress with the reason `Progress`."""
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
    """A table that is redrawn in place, under the lines of events."""

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
        """Print the event above the table."""
        moment = Text(f"{self._row.used_seconds:7.1f} s  ", style="dim")
        text = Text(f"{line.reason}: {line.message}", style="yellow" if line.warning else "not dim")
        self._console.print(moment + text, highlight=False)

    def progress(self, text: str) -> None:
        """Print nothing: the table shows the progress."""

    def note(self, text: str) -> None:
        """Print the message above the table."""
        self._console.print(Text(text, style="dim"), highlight=False)


def watch_display(row: JobRow, form: str) -> PlainWatch:
    """Return the display for `form` (`text` or `json`) and the kind of stdout."""
    if form == "json":
        return JsonWatch(row)
    console = plain_console()
    return LiveWatch(row, console) if console.is_terminal else PlainWatch(row)


@click.command(epilog=_EXIT_CODES)
@job_argument
@namespace_option
@click.option(
    "--patience",
    type=RealRange(min=0),
    default=300.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to retry if the API server does not answer.",
)
@output_option("text", "json")
@cluster_options
def watch(job: str, namespace: str | None, patience: float, form: str, cluster: Cluster) -> None:
    """Show the progress of JOB until it ends.

    On a terminal, this shows the job's events, and a table with its phase, time budget, GPUs, epoch, accuracy and
    depth. Elsewhere, it prints one line per event; with `-o json`, as JSON. It survives dropped connections and
    restarts of the API server.
    """
    handle = handle_of(job, namespace, cluster)
    first = handle.read()
    display = watch_display(row_of(first, cluster.now()), form)
    try:
        last = _watch(handle, first, display, patience)
    except KeyboardInterrupt:
        click.echo("interrupted; the job continues", err=True)
        sys.exit(INTERRUPTED)
    click.echo(verdict(last), err=True)
    if last.outcome is None or last.outcome.type != "Complete":
        sys.exit(1)


def _watch(handle: ClusterHandle, job: Job, display: PlainWatch, patience: float) -> Job:
    """Show the job until it ends, and return its last state."""
    try:
        narrator = Narrator(handle.events())  # past Events are not shown
    except ForbiddenError:
        narrator = Narrator()
    before = None
    with display:
        for news in handle.follow(patience):
            match news:
                case Job():
                    row = row_of(news, handle.cluster.now())
                    display.update(row)
                    for line in narrator.of_status(before, news):
                        display.show(line)
                    if before is not None and (text := narrator.progress(row)):
                        display.progress(text)
                    job, before = news, news.status
                case Event():
                    for line in narrator.of_event(news):
                        display.show(line)
                case Failed(error=error):  # Events fail: continue without them
                    if isinstance(refused := cluster_error(error), ForbiddenError):
                        display.note(f"Events are not shown: {refused.hint}")
                case Disconnected(error=error):
                    display.note(f"{error}; trying again for up to {patience:.0f} s")
                case Reconnected():
                    display.note("the API server answers again")
                case None:
                    display.update(row_of(job, handle.cluster.now()))
    return job
