"""`espalier submit`, `suspend`, `resume`, `delete` and `logs`: jobs of a cluster, by the client."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from espalier_cli.cluster.options import EXIT_CODES, cluster_options, handle_of, job_argument, namespace_option
from espalier_cli.errors import InputError
from espalier_cli.starting import JobFile
from espalier_core.client.cluster import ClusterClient, ClusterHandle
from espalier_core.k8s.access import Cluster
from espalier_core.validation.reading import JobFileError, load_jobs


@click.command(epilog=EXIT_CODES)
@click.argument("files", nargs=-1, required=True, type=JobFile())
@namespace_option
@cluster_options
def submit(files: tuple[Path, ...], namespace: str | None, cluster: Cluster) -> None:
    """Create the jobs of FILES in a cluster, after they have all been validated; the output is their names."""
    try:
        jobs = [job for path in files for job in load_jobs(path, None)]
    except JobFileError as error:
        raise InputError(str(error)) from error
    for job in jobs:
        made = ClusterClient(cluster, namespace).submit(job)
        click.echo(f"{made.namespace}/{made.name}")


@click.command(epilog=EXIT_CODES)
@job_argument
@namespace_option
@cluster_options
def delete(job: str, namespace: str | None, cluster: Cluster) -> None:
    """End JOB and delete it; its volumes, with its checkpoints, stay."""
    _change(handle_of(job, namespace, cluster), ClusterHandle.delete, "is deleted")


@click.command(epilog=EXIT_CODES)
@job_argument
@namespace_option
@cluster_options
def suspend(job: str, namespace: str | None, cluster: Cluster) -> None:
    """Take all GPUs from JOB, with a checkpoint, until it is resumed (`spec.suspend`)."""
    _change(handle_of(job, namespace, cluster), ClusterHandle.suspend, "is suspended")


@click.command(epilog=EXIT_CODES)
@job_argument
@namespace_option
@cluster_options
def resume(job: str, namespace: str | None, cluster: Cluster) -> None:
    """Let JOB, which was suspended, wait for GPUs and continue from its checkpoint."""
    _change(handle_of(job, namespace, cluster), ClusterHandle.resume, "is resumed")


def _change(handle: ClusterHandle, change: Callable[[ClusterHandle], None], done: str) -> None:
    change(handle)
    click.echo(f"{handle.namespace}/{handle.name} {done}", err=True)


@click.command(epilog=EXIT_CODES)
@job_argument
@namespace_option
@click.option("-f", "--follow", is_flag=True, help="Go on with what comes, until the pod ends.")
@click.option("--worker", metavar="POD", help="Pod of another worker.  [default: the leader, base worker 0]")
@cluster_options
def logs(job: str, namespace: str | None, follow: bool, worker: str | None, cluster: Cluster) -> None:
    """Print what the leader of JOB has written to its log."""
    for chunk in handle_of(job, namespace, cluster).logs(follow=follow, pod=worker):
        click.echo(chunk, nl=False)
