"""The command `espalier top`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import click

from espalier_cli.cluster.client import Lists, fetch
from espalier_cli.cluster.options import OF_OPERATOR, cluster_options, output_option, settings_options
from espalier_cli.cluster.output import Row, count, print_data, print_heading, print_table, short
from espalier_cli.cluster.usage import AvoidedUse, JobUse, TypeUse, avoided, others, use_by_job, use_by_type, why_not
from espalier_core.k8s.access import Cluster
from espalier_core.k8s.resources import NODES
from espalier_operator.kube.inspection import KubeSettings, parse_node, seen_by_operator

_TYPE_COLUMNS = ("TYPE", "NODES", "TOTAL", "BASE", "LENT", "OTHERS", "TERMINATING", "PROMISED", "FREE")
_JOB_COLUMNS = ("JOB", "TYPE", "BASE", "LENT", "TERMINATING", "PROMISED", "BUDGET-LEFT")
_TYPE_NAMES = {"gpu_type": "type", "largest_free": "largestFreeOnANode", "short": "heldBeyondAllocatable"}
_JOB_NAMES = {"gpu_type": "type", "remaining_seconds": "budgetRemainingSeconds"}


@click.command(epilog=OF_OPERATOR)
@output_option("table", "json", "yaml")
@cluster_options
@settings_options
def top(form: str, cluster: Cluster, settings: KubeSettings) -> None:
    """Show the GPUs of a cluster: how many there are of each type, who holds them, and which do not count and why.

    BASE GPUs are guaranteed to running jobs. LENT GPUs can be taken back. OTHERS are held by pods that are not
    Espalier's. TERMINATING pods hold their GPUs until they have ended. PROMISED GPUs are granted to pods that are not
    on a node yet.
    """
    lists = fetch(cluster, settings)
    whole = overview(lists, cluster.now(), settings)
    if form == "table":
        _print(whole)
    else:
        print_data(whole, form)


def overview(lists: Lists, now: float, settings: KubeSettings) -> dict[str, Any]:
    """Return the output in plain JSON types."""
    snapshot = seen_by_operator(lists, now, settings).snapshot
    nodes = []
    for raw in lists[NODES].items:
        node = parse_node(raw, settings)
        if node.allocatable and (reasons := why_not(raw, settings)):
            nodes.append({"name": node.name, "type": node.gpu_type, "gpus": node.allocatable, "why": reasons})
    return {
        "types": [_renamed(use, _TYPE_NAMES) for use in use_by_type(snapshot)],
        "jobs": [_renamed(use, _JOB_NAMES) for use in use_by_job(snapshot)],
        "others": [{"namespace": name, "held": held, "waitedFor": wanted} for name, held, wanted in others(snapshot)],
        "nodesNotCounted": nodes,
        "nodesAvoided": [_renamed(use, {"by_all": "byAll"}) for use in avoided(snapshot)],
    }


def _renamed(use: TypeUse | JobUse | AvoidedUse, names: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of `use`, with those in `names` under other names."""
    return {names.get(name, name): value for name, value in asdict(use).items()}


def _print(whole: dict[str, Any]) -> None:
    if not whole["types"]:
        click.echo("no node has GPUs of this resource; use --gpu-resource for another one", err=True)
        return
    keys = ("nodes", "total", "base", "lent", "others", "terminating", "promised", "free")
    rows: list[Row] = [[use["type"] or "-", *(str(use[key]) for key in keys)] for use in whole["types"]]
    print_table(_TYPE_COLUMNS, rows, right=_TYPE_COLUMNS[1:])
    for use in whole["types"]:
        if use["heldBeyondAllocatable"]:
            amount = count(use["heldBeyondAllocatable"], "GPU")
            click.echo(f"{use['type'] or '-'}: {amount} more held than nodes have; some have failed in use")
    if whole["jobs"]:
        click.echo()
        held = ("base", "lent", "terminating", "promised")
        print_table(
            _JOB_COLUMNS,
            [
                [
                    use["job"],
                    use["type"] or "-",
                    *(str(use[key]) for key in held),
                    short(use["budgetRemainingSeconds"]),
                ]
                for use in whole["jobs"]
            ],
            right=_JOB_COLUMNS[2:],
        )
    if whole["others"]:
        click.echo()
        rows = [[entry["namespace"], str(entry["held"]), str(entry["waitedFor"])] for entry in whole["others"]]
        print_table(("OTHERS IN", "HELD", "WAITED-FOR"), rows, right=("HELD", "WAITED-FOR"))
    if whole["nodesNotCounted"]:
        click.echo()
        print_heading("Nodes that do not count")
        rows = [
            [entry["name"], entry["type"] or "-", str(entry["gpus"]), ", ".join(entry["why"])]
            for entry in whole["nodesNotCounted"]
        ]
        print_table(("NODE", "TYPE", "GPUS", "WHY"), rows, right=("GPUS",))
    if whole["nodesAvoided"]:
        click.echo()
        print_heading("Nodes that jobs avoid")
        rows = [
            [each["node"], str(each["jobs"]), short(each["seconds"]), each["message"]] for each in whole["nodesAvoided"]
        ]
        print_table(("NODE", "JOBS", "FOR", "WHY"), rows, right=("JOBS", "FOR"))
