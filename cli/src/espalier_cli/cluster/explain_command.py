"""The command `espalier explain`."""

from __future__ import annotations

import difflib
from dataclasses import replace

import click

from espalier_cli.cluster.case import Case, case_of
from espalier_cli.cluster.client import Cluster
from espalier_cli.cluster.errors import ClusterError, ForbiddenError, NotFoundError
from espalier_cli.cluster.events import Event, event_of, is_about
from espalier_cli.cluster.explanation import explanation
from espalier_cli.cluster.fetch import fetch_for_job
from espalier_cli.cluster.options import (
    EXIT_CODES,
    cluster_options,
    namespace_option,
    output_option,
    settings_options,
)
from espalier_cli.cluster.output import print_data, print_heading
from espalier_cli.cluster.standing import phase, standing
from espalier_cli.policy_option import policy_option
from espalier_core.k8s.resources import EVENTS, JOBS
from espalier_operator.kube.inspection import KubeSettings


@click.command(epilog=EXIT_CODES)
@click.argument("job")
@namespace_option
@output_option("text", "json", "yaml")
@cluster_options
@settings_options
@policy_option("Scheduling policy for the explanation.  [default: the operator's]", None)
def explain(job: str, namespace: str | None, form: str, cluster: Cluster, settings: KubeSettings) -> None:
    """Explain the state of JOB, its reasons, and what would change it.

    The output also contains the remaining budgets, the GPUs and whether the job has acknowledged them, the advice of
    the agent with its results, and the latest Events.
    """
    where, name = place_of(job, namespace, cluster)
    try:
        case = case_of(where, name, fetch_for_job(cluster, settings, where, name), cluster.now(), settings)
    except NotFoundError:
        case = None
    if case is None:
        raise not_found(cluster, where, name)
    case = replace(case, events=tuple(events_of(cluster, case)))
    sections = explanation(case)
    if form != "text":
        why = standing(case.job)
        print_data(
            {
                "job": case.job.key,
                "phase": phase(case.job),
                "reason": None if why.reason is None else str(why.reason),
                "sections": [{"title": section.title, "lines": list(section.lines)} for section in sections],
            },
            form,
        )
        return
    for number, section in enumerate(sections):
        if number:
            click.echo()
        print_heading(section.title)
        for line in section.lines:
            click.echo(f"  {line}")


def place_of(job: str, namespace: str | None, cluster: Cluster) -> tuple[str, str]:
    """Return namespace and name of `job`, which may be written `namespace/name`."""
    given, _, name = job.rpartition("/")
    return given or namespace or cluster.namespace, name


def not_found(cluster: Cluster, namespace: str, name: str) -> ClusterError:
    """Return the error for an unknown job, with the most similar existing name."""
    return NotFoundError(f"there is no job {name!r} in namespace {namespace}", _nearest(cluster, namespace, name))


def _nearest(cluster: Cluster, namespace: str, name: str) -> str:
    known = [raw["metadata"]["name"] for raw in cluster.list_all(JOBS, namespace).items]
    if near := difflib.get_close_matches(name, known, n=1, cutoff=0.5):
        return f"did you mean {near[0]}?"
    try:
        everywhere = [raw["metadata"] for raw in cluster.list_all(JOBS).items]
    except ForbiddenError:
        everywhere = []
    if elsewhere := [metadata["namespace"] for metadata in everywhere if metadata["name"] == name]:
        return f"there is one in namespace {elsewhere[0]}: -n {elsewhere[0]}"
    return f"there are: {', '.join(sorted(known)[:10])}" if known else "espalier list -A shows all jobs"


def events_of(cluster: Cluster, case: Case) -> list[Event]:
    """Return the Events of the job, and warnings about its leader's pod; nothing if the user may not read Events."""
    job = case.job
    try:
        own, pod = cluster.at_once(
            lambda: cluster.list_all(EVENTS, job.namespace, fields=f"involvedObject.name={job.name}"),
            lambda: cluster.list_all(
                EVENTS, job.namespace, fields=f"involvedObject.name={case.leader_name},type=Warning"
            ),
        )
    except ForbiddenError:
        return []
    found = [event_of(raw) for raw in own.items if is_about(raw, job.uid)]
    uid = None if case.leader is None else case.leader.uid
    return found + [event_of(raw) for raw in pod.items if uid is not None and is_about(raw, uid)]
