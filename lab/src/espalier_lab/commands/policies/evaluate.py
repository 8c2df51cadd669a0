"""`espalier policies evaluate`: comparison of learned policies with rules, on the same traces."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from espalier_cli.errors import InputError
from espalier_cli.tables import plain_console
from espalier_lab.commands.policies.options import cluster_sizes
from espalier_lab.intervals import Interval
from espalier_lab.scheduling.allocation.judging import NODES, greedy, judge
from espalier_lab.scheduling.allocation.rules import RULES, Chooser
from espalier_lab.scheduling.learned.description import WORKERS_AND_SERVERS
from espalier_lab.scheduling.learned.files import LearnedPolicyError, read_policy
from espalier_lab.scheduling.seed_split import SeedSplit


@click.command()
@click.argument("policies", nargs=-1, required=True, metavar="POLICY...")
@click.option(
    "--nodes",
    default=",".join(map(str, NODES)),
    show_default=True,
    metavar="N[,N...]",
    help="Numbers of nodes of the simulated clusters.",
)
@click.option("--episodes", type=click.IntRange(1, 1000), default=10, show_default=True, help="Traces of 60 jobs.")
@click.option(
    "--purpose",
    type=click.Choice([each.name.lower() for each in SeedSplit]),
    default="judge",
    show_default=True,
    help="Purpose of the traces: those for choosing settings, for judging and for learning are disjoint.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def evaluate(policies: tuple[str, ...], nodes: str, episodes: int, purpose: str, as_json: bool) -> None:
    """Evaluate each POLICY in DL2's simulated cluster: a file of `policies learn`, or a rule.

    Rules: drf, optimus, optimus-by-share, optimus-ahead, soonest. All see the same traces. Prints the mean completion
    time in slots of 20 minutes, with its 95 % interval over traces.
    """
    sizes = cluster_sizes(nodes)
    choosers = {name: _chooser(name) for name in policies}
    runs = [
        _run(name, choose, size, episodes, SeedSplit.of(purpose)) for size in sizes for name, choose in choosers.items()
    ]
    if as_json:
        click.echo(json.dumps({"runs": runs}, indent=2))
        return
    table = Table("policy", "nodes", "slots", "95 %", title=f"mean completion time, {episodes} traces")
    for run in runs:
        half = "" if run["halfWidth"] is None else f"± {run['halfWidth']:.2f}"
        table.add_row(run["policy"], str(run["nodes"]), f"{run['meanSlots']:.2f}", half)
    plain_console().print(table)


def _chooser(name: str) -> Chooser:
    if name in RULES:
        return RULES[name]
    try:
        policy = read_policy(Path(name))
    except LearnedPolicyError as error:
        raise InputError(f"{error} (rules: {', '.join(RULES)})") from error
    if policy.lineage.actions != WORKERS_AND_SERVERS:
        raise InputError(f"{name}: gives {', '.join(policy.lineage.actions)}; here jobs have parameter servers, too")
    return greedy(policy.network)


def _run(name: str, choose: Chooser, nodes: int, episodes: int, purpose: SeedSplit) -> dict[str, Any]:
    found = [float(each) for each in judge(choose, nodes, episodes, purpose)]
    interval = Interval.of(found)
    return {
        "policy": name,
        "nodes": nodes,
        "episodes": episodes,
        "meanSlots": interval.mean,
        "halfWidth": None if interval.high is None else interval.high - interval.mean,
        "slots": found,
    }
