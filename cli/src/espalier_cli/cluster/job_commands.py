"""`espalier suspend`, `resume` and `logs`: one job of a cluster."""

from __future__ import annotations

import click

from espalier_cli.cluster.client import Cluster, NotFoundError, for_a_person
from espalier_cli.cluster.explain_command import not_found, place_of
from espalier_cli.cluster.options import EXIT_CODES, cluster_options, namespace_option
from espalier_cli.errors import InputError
from espalier_core.k8s.resources import JOBS, PODS, Raw
from espalier_operator.kube.inspection import names


@click.command(epilog=EXIT_CODES)
@click.argument("job")
@namespace_option
@cluster_options
def suspend(job: str, namespace: str | None, cluster: Cluster) -> None:
    """Take all GPUs from JOB, with a checkpoint, until it is resumed (`spec.suspend`)."""
    _set_suspended(job, namespace, cluster, suspended=True)


@click.command(epilog=EXIT_CODES)
@click.argument("job")
@namespace_option
@cluster_options
def resume(job: str, namespace: str | None, cluster: Cluster) -> None:
    """Let JOB, which was suspended, wait for GPUs and continue from its checkpoint."""
    _set_suspended(job, namespace, cluster, suspended=False)


def _set_suspended(job: str, namespace: str | None, cluster: Cluster, *, suspended: bool) -> None:
    where, name = place_of(job, namespace, cluster)
    try:
        with for_a_person():
            cluster.client.merge_patch(JOBS, where, name, {"spec": {"suspend": suspended}})
    except NotFoundError:
        raise not_found(cluster, where, name) from None
    click.echo(f"{where}/{name} {'is suspended' if suspended else 'is resumed'}", err=True)


@click.command(epilog=EXIT_CODES)
@click.argument("job")
@namespace_option
@click.option("-f", "--follow", is_flag=True, help="Go on with what comes, until the pod ends.")
@click.option("--worker", metavar="POD", help="Pod of another worker.  [default: the leader, base worker 0]")
@cluster_options
def logs(job: str, namespace: str | None, follow: bool, worker: str | None, cluster: Cluster) -> None:
    """Print what the leader of JOB has written to its log."""
    where, name = place_of(job, namespace, cluster)
    pods = cluster.list_all(PODS, where, labels=f"{names.JOB_LABEL}={name}").items
    if not pods:
        try:
            cluster.get(JOBS, where, name)
        except NotFoundError:
            raise not_found(cluster, where, name) from None
        raise InputError(f"{where}/{name} has no pods now", f"espalier explain {name} says why")
    found = {pod["metadata"]["name"]: pod for pod in pods}
    pod = found.get(worker) if worker else min(pods, key=_leader_first)
    if pod is None:
        raise InputError(f"--worker {worker}: is no pod of {where}/{name}; it has {', '.join(sorted(found))}")
    containers = [each["name"] for each in pod["spec"]["containers"]]
    container = "trainer" if "trainer" in containers else containers[0]  # another may have been put in front of it
    with for_a_person():
        for chunk in cluster.client.log(where, pod["metadata"]["name"], container, follow=follow):
            click.echo(chunk, nl=False)


def _leader_first(pod: Raw) -> tuple[bool, str, int]:
    """Return a key by which the newest pod of base worker 0 is the first."""
    labels = pod["metadata"]["labels"]
    return labels.get(names.ROLE_LABEL) != "base", labels.get(names.INDEX_LABEL, ""), -int(labels[names.ATTEMPT_LABEL])
