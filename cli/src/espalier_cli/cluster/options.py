"""Options that the commands against a cluster share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import wraps
from pathlib import Path
from typing import Any

import click

from espalier_cli.cluster.client import connect
from espalier_operator.kube.inspection import AS_RECORDED, KubeSettings

EXIT_CODES = """\
Exit codes: 0 success, 1 the cluster did not answer or refused, 2 an input cannot be used."""

Command = Callable[..., Any]
_DEFAULTS = {field.name: field.default for field in fields(KubeSettings)}


def cluster_options(command: Command) -> Command:
    """Add `--kubeconfig` and `--context`, connect to their cluster, and give it as `cluster`."""

    @click.option(
        "--kubeconfig",
        type=click.Path(path_type=Path, dir_okay=False),
        help="Path of the kubeconfig.  [default: KUBECONFIG, or ~/.kube/config]",
    )
    @click.option("--context", metavar="NAME", help="Context of the kubeconfig.  [default: the current one]")
    @wraps(command)
    def connected(*, kubeconfig: Path | None, context: str | None, **given: Any) -> None:
        with connect(kubeconfig, context) as cluster:
            command(cluster=cluster, **given)

    return connected


def settings_options(command: Command) -> Command:
    """Add the operator's settings that affect which GPUs count, with its defaults, and give them as `settings`.

    They contain the scheduling policy of a command that has `--policy`, if one is named; otherwise the operator's.
    """

    @click.option(
        "--controller-name",
        metavar="NAME",
        default=_DEFAULTS["controller_name"],
        show_default=True,
        help="controllerName of the operator. Set this and the next five options as for the operator.",
    )
    @click.option(
        "--gpu-resource",
        metavar="NAME",
        default=_DEFAULTS["gpu_resource"],
        show_default=True,
        help="Resource that counts as a GPU.",
    )
    @click.option(
        "--other-gpu-resource",
        "other_gpu_resources",
        multiple=True,
        metavar="NAME",
        default=_DEFAULTS["other_gpu_resources"],
        help="Further resource that counts as a GPU. Repeatable.",
    )
    @click.option(
        "--gpu-type-label",
        metavar="LABEL",
        default=_DEFAULTS["gpu_type_label"],
        show_default=True,
        help="Node label that distinguishes types of GPUs.",
    )
    @click.option(
        "--rack-label",
        metavar="LABEL",
        default=_DEFAULTS["rack_label"],
        help="Node label that names a node's rack.  [default: racks are not known]",
    )
    @click.option(
        "--tolerated-taint",
        "tolerated_taints",
        multiple=True,
        metavar="KEY",
        default=_DEFAULTS["tolerated_taints"],
        show_default=True,
        help="Key of a taint that all workers tolerate. Repeatable.",
    )
    @wraps(command)
    def counting(**given: Any) -> None:
        chosen = {name: given.pop(name) for name in _DEFAULTS.keys() & given.keys()}
        chosen["policy"] = chosen.get("policy") or AS_RECORDED
        command(settings=KubeSettings(**chosen), **given)

    return counting


def output_option(*formats: str) -> Callable[[Command], Command]:
    """Add `-o`; the first of `formats` is the default."""
    return click.option(
        "-o",
        "--output",
        "form",
        type=click.Choice(formats),
        default=formats[0],
        show_default=True,
        help="Output format.",
    )


namespace_option = click.option(
    "-n", "--namespace", metavar="NAME", help="Namespace of the job.  [default: the context's namespace]"
)
