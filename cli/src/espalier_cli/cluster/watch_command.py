"""The command `espalier watch`.

A terminal shows a live table under the news of the job; elsewhere they are plain lines or JSON lines.
"""

from __future__ import annotations

import json
import queue
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text

from espalier_cli.cluster.client import Cluster, ClusterError, ForbiddenError, NotFoundError, cluster_error
from espalier_cli.cluster.explain_command import not_found, place_of
from espalier_cli.cluster.narration import Line, Narrator, row_of, verdict
from espalier_cli.cluster.options import cluster_options, namespace_option, output_option
from espalier_cli.display import JobRow, progress_table
from espalier_cli.tables import plain_console
from espalier_core.console import INTERRUPTED, RealRange
from espalier_core.k8s.jobs import Event, Job, event_of, is_about, job_of
from espalier_core.k8s.reflector import Change, Changed, Deleted, Disconnected, Failed, Reconnected, Reflector, Rhythm
from espalier_core.k8s.resources import EVENTS, JOBS, Raw, Resource
from espalier_core.types.task import accuracy_of

_EXIT_CODES = """\
Exit codes: 0 the job is complete, 1 it failed, was deleted, or the cluster did not answer, 2 an input cannot be used,
130 interrupted (the job continues)."""
_REDRAW_SECONDS = 0.25
_CLOSE_SECONDS = 2.0


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


@dataclass(frozen=True, slots=True)
class _News:
    of_job: bool
    change: Change


@click.command(epilog=_EXIT_CODES)
@click.argument("job")
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
    where, name = place_of(job, namespace, cluster)
    known = _known_events(cluster, where, name)
    try:
        raw = cluster.get(JOBS, where, name)
    except NotFoundError as error:
        raise not_found(cluster, where, name) from error
    first = job_of(raw)
    display = watch_display(row_of(first, cluster.now()), form)
    try:
        last = _watch(cluster, raw, Narrator(known), display, patience)
    except KeyboardInterrupt:
        click.echo("interrupted; the job continues", err=True)
        sys.exit(INTERRUPTED)
    if last is None:
        raise ClusterError(f"{first.key} was deleted before it ended")
    click.echo(verdict(last), err=True)
    if last.outcome is None or last.outcome.type != "Complete":
        sys.exit(1)


def _watch(cluster: Cluster, raw: Raw, narrator: Narrator, display: PlainWatch, patience: float) -> Job | None:
    """Show the job until it ends and return its last state; None if it was deleted."""
    job = job_of(raw)
    news: queue.SimpleQueue[_News] = queue.SimpleQueue()

    def reflector(resource: Resource, fields: str, known: Iterable[Raw] = ()) -> Reflector:
        def put(change: Change) -> None:
            news.put(_News(resource is JOBS, change))

        rhythm = Rhythm(patience=patience)
        return Reflector(cluster.client, resource, job.namespace, fields, put, rhythm=rhythm, known=known)

    reflectors = (
        reflector(JOBS, f"metadata.name={job.name}", [raw]),
        reflector(EVENTS, f"involvedObject.name={job.name}"),
    )
    with display:
        for line in narrator.of_status(None, job):
            display.show(line)
        for each in reflectors:
            each.start()
        try:
            while job.outcome is None:
                try:
                    given = news.get(timeout=_REDRAW_SECONDS)
                except queue.Empty:
                    display.update(row_of(job, cluster.now()))
                    continue
                if not given.of_job:
                    _event(given.change, job, narrator, display)
                    continue
                match given.change:
                    case Deleted(object=gone) if gone["metadata"]["uid"] == job.uid:
                        return None
                    case Changed(object=seen) if seen["metadata"]["uid"] == job.uid:
                        job = _status(job, job_of(seen), cluster.now(), narrator, display)
                    case Changed():
                        return None  # another of the same name
                    case Failed(error=error):
                        raise cluster_error(error)
                    case other:
                        _connection(other, display, patience)
        finally:
            for each in reflectors:
                each.stop()
            for each in reflectors:
                each.join(_CLOSE_SECONDS)
    return job


def _status(before: Job, after: Job, now: float, narrator: Narrator, display: PlainWatch) -> Job:
    row = row_of(after, now)
    display.update(row)
    for line in narrator.of_status(before.status, after):
        display.show(line)
    if text := narrator.progress(row):
        display.progress(text)
    return after


def _event(change: Change, job: Job, narrator: Narrator, display: PlainWatch) -> None:
    if isinstance(change, Changed) and is_about(change.object, job.uid):
        for line in narrator.of_event(event_of(change.object)):
            display.show(line)
    elif isinstance(change, Failed) and isinstance(error := cluster_error(change.error), ForbiddenError):
        display.note(f"Events are not shown: {error.hint}")


def _connection(change: Change, display: PlainWatch, patience: float) -> None:
    if isinstance(change, Disconnected):
        display.note(f"{change.error}; trying again for up to {patience:.0f} s")
    elif isinstance(change, Reconnected):
        display.note("the API server answers again")


def _known_events(cluster: Cluster, namespace: str, name: str) -> list[Event]:
    """Return the Events that exist at the start, which are not shown."""
    try:
        found = cluster.list_all(EVENTS, namespace, fields=f"involvedObject.name={name}")
    except ForbiddenError:
        return []
    return [event_of(raw) for raw in found.items]
