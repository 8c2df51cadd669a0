"""`espalier simulate`: the jobs of a trace under one policy or several, side by side."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from espalier_cli.cluster.output import Row, print_table
from espalier_cli.errors import InputError
from espalier_operator.planning import configured
from espalier_operator.simulation.cluster import nodes_of
from espalier_operator.simulation.outcome import Outcome, outcome_of
from espalier_operator.simulation.profiles import Profiles
from espalier_operator.simulation.rounds import Node, Rounds
from espalier_operator.simulation.traces import READERS

DRIVER = "rounds"
_COLUMNS = ("TRACE", "POLICY", "JOBS", "MEAN-JCT", "MEDIAN", "P99", "MAKESPAN", "IN-USE", "RESTARTS")
"""Times are in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    trace: Path
    policy: str
    outcome: Outcome
    seconds: float


@click.command()
@click.argument("traces", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--format", "form", type=click.Choice(list(READERS)), default="csv", show_default=True, help="Format of TRACES."
)
@click.option(
    "--profiles",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of measured applications, which traces of the Pollux format name.",
)
@click.option("--cluster", required=True, metavar="NODESxGPUS", help="Nodes and their GPUs: 16x4, or 8x4,2x8.")
@click.option(
    "--policy",
    "policies",
    metavar="NAME[:KEY=VALUE,...]",
    multiple=True,
    default=("fair",),
    show_default=True,
    help="Scheduling policy, with its settings; again for each to compare.",
)
@click.option(
    "--driver",
    type=click.Choice([DRIVER]),
    default=DRIVER,
    show_default=True,
    help="rounds: the policy decides each minute, and it happens at once.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def simulate(
    traces: tuple[Path, ...],
    form: str,
    profiles: Path | None,
    cluster: str,
    policies: tuple[str, ...],
    driver: str,
    as_json: bool,
) -> None:
    """Simulate the jobs of TRACES on a cluster, under each policy in turn, and compare their completion times.

    Formats: pollux (name,time,application,num_replicas,batch_size, with --profiles), csv
    (timestamp,duration,num_gpus, as Philly and Helios were published). Times are seconds.
    """
    if profiles is not None and not profiles.is_dir():
        raise InputError(f"--profiles: {profiles} is not a folder")
    known = None if profiles is None else Profiles(profiles)
    try:
        nodes = nodes_of(cluster)
        for policy in policies:
            configured(policy)
        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            runs = [_simulated(trace, form, known, nodes, policy, bar) for trace, policy in product(traces, policies)]
    except ValueError as error:
        raise InputError(str(error)) from error
    if as_json:
        click.echo(json.dumps({"runs": [_document(run) for run in runs]}, indent=2))
    else:
        print_table(_COLUMNS, map(_row, runs), right=_COLUMNS[2:])


def _simulated(
    trace: Path, form: str, profiles: Profiles | None, nodes: Sequence[Node], policy: str, bar: Progress
) -> _Run:
    jobs = READERS[form](trace, profiles)
    task = bar.add_task(f"{trace.name} {policy}", total=len(jobs))
    rounds = Rounds(jobs, nodes, configured(policy))
    began = time.perf_counter()
    rounds.run(lambda completed: bar.update(task, completed=completed))
    seconds = time.perf_counter() - began
    bar.remove_task(task)
    outcome = outcome_of(jobs, sum(node.gpus for node in nodes))
    return _Run(trace=trace, policy=policy, outcome=outcome, seconds=seconds)


def _document(run: _Run) -> dict[str, object]:
    outcome = run.outcome
    return {
        "trace": str(run.trace),
        "policy": run.policy,
        "driver": DRIVER,
        "jobs": outcome.jobs,
        "averageJctSeconds": outcome.average_jct,
        "medianJctSeconds": outcome.median_jct,
        "p99JctSeconds": outcome.p99_jct,
        "makespanSeconds": outcome.makespan,
        "utilisation": outcome.utilisation,
        "restarts": outcome.restarts,
        "seconds": run.seconds,
    }


def _row(run: _Run) -> Row:
    found = run.outcome
    return (
        run.trace.name,
        run.policy,
        str(found.jobs),
        *(f"{seconds:,.0f}" for seconds in (found.average_jct, found.median_jct, found.p99_jct, found.makespan)),
        f"{found.utilisation:.0%}",
        str(found.restarts),
    )
