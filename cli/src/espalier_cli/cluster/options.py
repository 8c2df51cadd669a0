"""Options shared by the commands against a cluster."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, Final

import click

from espalier_core.client.cluster import ClusterClient, ClusterHandle
from espalier_core.k8s.access import Cluster, connect
from espalier_core.k8s.errors import ClientError, Retries
from espalier_operator.kube.inspection import AS_RECORDED
from espalier_operator.kube.settings import settings_of
from espalier_operator.kube.settings import settings_options as operator_options

EXIT_CODES = """\
Exit codes: 0 success, 1 the cluster did not answer or refused, 2 an input cannot be used."""

OF_OPERATOR = f"""\
Where the operator has other settings than the defaults, give its own options (--gpu-resource, --controller-name, ...),
which `espalier snapshot --help` lists.

{EXIT_CODES}"""

DEEPEST: Final = 40_000
"""The API server stores documents nested ten thousand deep; a list that contains such a job is still read."""
QUICK: Final = Retries(deadline=3.0, tries=1)
"""Retries of requests for completion, while a person waits."""
Command = Callable[..., Any]
_DECISIVE = (
    *("controller_name", "gpu_resource", "other_gpu_resources", "gpu_type_label", "rack_label", "tolerated_taints"),
    *("departing_nodes", "fair_share_half_life_seconds", "aging_seconds", "kueue", "kueue_extra_workers"),
    "eviction_requests",
)
"""The operator's settings that affect a plan, in the form of its command line."""


def cluster_options(command: Command) -> Command:
    """Add `--kubeconfig` and `--context`, connect to their cluster, and pass it as `cluster`."""

    @click.option(
        "--kubeconfig",
        type=click.Path(path_type=Path, dir_okay=False),
        help="Path of the kubeconfig.  [default: KUBECONFIG, or ~/.kube/config]",
    )
    @click.option("--context", metavar="NAME", help="Context of the kubeconfig.  [default: the current one]")
    @wraps(command)
    def connected(*, kubeconfig: Path | None, context: str | None, **given: Any) -> None:
        sys.setrecursionlimit(max(DEEPEST, sys.getrecursionlimit()))
        with connect(kubeconfig, context) as cluster:
            command(cluster=cluster, **given)

    return connected


def settings_options(command: Command, *, shown: bool = False) -> Command:
    """Add the operator's settings that affect its decisions, as its own options, and pass them as `settings`.

    The help of one command shows them; that of the others refers to it (`OF_OPERATOR`).
    They contain the scheduling policy of a command that has `--policy`, if one is named; otherwise the operator's.
    """

    @wraps(command)
    def counting(**given: Any) -> None:
        chosen = {name: given.pop(name) for name in (*_DECISIVE, "policy") if name in given}
        chosen["policy"] = chosen.get("policy") or AS_RECORDED
        command(settings=settings_of(chosen), **given)

    with_options = operator_options(counting, _DECISIVE)
    for option in getattr(with_options, "__click_params__", ()):
        option.hidden = option.hidden or (not shown and option.name in _DECISIVE)
    return with_options


def output_option(*formats: str) -> Callable[[Command], Command]:
    """Add `-o`, whose default is the first of `formats`, and `--json`, which all commands with data have."""

    def added(command: Command) -> Command:
        @click.option(
            "-o",
            "--output",
            "form",
            type=click.Choice(formats),
            default=formats[0],
            show_default=True,
            help="Output format.",
        )
        @click.option("--json", "as_json", is_flag=True, help="The same as -o json.")
        @wraps(command)
        def formed(*, form: str, as_json: bool, **given: Any) -> None:
            command(form="json" if as_json else form, **given)

        return formed

    return added


namespace_option = click.option(
    "-n", "--namespace", metavar="NAME", help="Namespace of the job.  [default: the context's namespace]"
)


def job_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the names of jobs with this beginning, for completion; none if no cluster answers."""
    given = ctx.params
    try:
        with connect(given.get("kubeconfig"), given.get("context"), QUICK) as cluster:
            found = cluster.jobs(given.get("namespace") or cluster.namespace)
    except ClientError:
        return []
    return [job.name for job in found if job.name.startswith(incomplete)]


job_argument = click.argument("job", shell_complete=job_names)


def handle_of(job: str, namespace: str | None, cluster: Cluster) -> ClusterHandle:
    """Return a handle for the job `NAME` or `NAMESPACE/NAME`."""
    return ClusterClient(cluster, namespace).job_at(job)
