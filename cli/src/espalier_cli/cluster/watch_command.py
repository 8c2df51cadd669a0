"""The command `espalier watch`."""

from __future__ import annotations

import queue
import sys
from collections.abc import Iterable
from dataclasses import dataclass

import click

from espalier_cli.cluster.client import Cluster
from espalier_cli.cluster.errors import ClusterError, ForbiddenError, NotFoundError, cluster_error
from espalier_cli.cluster.events import Event, event_of, is_about
from espalier_cli.cluster.explain_command import not_found, place_of
from espalier_cli.cluster.narration import Narrator, row_of, verdict
from espalier_cli.cluster.options import cluster_options, namespace_option, output_option
from espalier_cli.cluster.standing import Job, job_of
from espalier_cli.cluster.watch_display import PlainWatch, watch_display
from espalier_core.console import INTERRUPTED, RealRange
from espalier_core.k8s.reflector import Change, Changed, Deleted, Disconnected, Failed, Reconnected, Reflector, Rhythm
from espalier_core.k8s.resources import EVENTS, JOBS, Raw, Resource

_EXIT_CODES = """\
Exit codes: 0 the job is complete, 1 it failed, was deleted, or the cluster did not answer, 2 an input cannot be used,
130 interrupted (the job continues)."""
_REDRAW_SECONDS = 0.25
_CLOSE_SECONDS = 2.0


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
