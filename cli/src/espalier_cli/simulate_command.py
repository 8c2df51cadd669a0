"""`espalier simulate`: the jobs of a trace under one policy or several, side by side."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from espalier_api.job import BasePreemption
from espalier_cli.cluster.output import Row, print_table
from espalier_cli.errors import InputError
from espalier_operator.planning import Policy, configured, elasticity_of
from espalier_operator.simulation.cluster import nodes_of
from espalier_operator.simulation.gavel import FORMAT as GAVEL
from espalier_operator.simulation.gavel import Throughputs, nodes_by_type, read_gavel
from espalier_operator.simulation.latencies import LATENCIES
from espalier_operator.simulation.outcome import Ended, Outcome, outcome_of
from espalier_operator.simulation.planned import Planned
from espalier_operator.simulation.profiles import Profiles
from espalier_operator.simulation.rounds import Rounds
from espalier_operator.simulation.traces import READERS
from espalier_operator.simulation.typed import TypedRounds

ROUNDS, PLAN = "rounds", "plan"
PICTURES = (".png", ".svg")
_COLUMNS = (
    *("TRACE", "POLICY", "JOBS", "MEAN-JCT", "MEDIAN", "P99", "MAKESPAN", "IN-USE", "FTF", "WORST", "RESTARTS"),
    *("PREEMPTIONS", "EVICTIONS"),
)
"""Times are in seconds."""
_NOTES = {
    "finishTimeFairness": "the trace has jobs whose speed was not measured as their author asked for them",
    "accuracyGained": "jobs of traces do not grow",
}
"""Why a metric does not apply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Simulation:
    jobs: Sequence[Ended]
    gpus: int
    run: Callable[[Callable[[int], None]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    trace: Path
    policy: str
    simulation: _Simulation
    outcome: Outcome
    seconds: float


_Prepare = Callable[[Path, Policy], _Simulation]


@click.command()
@click.argument("traces", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--format",
    "form",
    type=click.Choice([*READERS, GAVEL]),
    default="csv",
    show_default=True,
    help="Format of TRACES.",
)
@click.option(
    "--profiles",
    type=click.Path(path_type=Path),
    help="What was measured: for pollux, the folder of applications; for gavel, simulation_throughputs.json or its "
    "folder, by default that of the trace.",
)
@click.option(
    "--cluster",
    required=True,
    metavar="NODESxGPUS",
    help="Nodes and their GPUs: 16x4, or 8x4,2x8. For gavel, numbers of V100, P100 and K80 GPUs: 8:16:24.",
)
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
    type=click.Choice([ROUNDS, PLAN]),
    default=ROUNDS,
    show_default=True,
    help="rounds: the policy decides each minute, and it happens at once. plan: the operator's planner and state "
    "machine of jobs do.",
)
@click.option(
    "--latency",
    type=click.Choice([*LATENCIES]),
    help="With --driver plan: how long workers take to start and to leave, with notices and cooldowns.  "
    "[default: none]",
)
@click.option(
    "--base-preemption",
    type=click.Choice([each.value for each in BasePreemption]),
    help="With --driver plan: spec.preemption.base of all jobs.  [default: Checkpoint]",
)
@click.option(
    "--picture",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Draw completion times, unfinished jobs and GPUs held into this file, .png or .svg.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def simulate(
    traces: tuple[Path, ...],
    form: str,
    profiles: Path | None,
    cluster: str,
    policies: tuple[str, ...],
    driver: str,
    latency: str | None,
    base_preemption: str | None,
    picture: Path | None,
    as_json: bool,
) -> None:
    """Simulate the jobs of TRACES on a cluster, under each policy in turn, and compare their completion times.

    Formats: pollux (name,time,application,num_replicas,batch_size, with --profiles), csv
    (timestamp,duration,num_gpus, as Philly and Helios were published), gavel (jobs on V100, P100 and K80 GPUs, with
    --cluster V100S:P100S:K80S, servers of 4, 4 and 8 GPUs, and rounds of 360 s). Times are seconds.
    """
    _check_driver(driver, form, latency, base_preemption)
    if form != GAVEL and profiles is not None and not profiles.is_dir():
        raise InputError(f"--profiles: {profiles} is not a folder")
    if picture is not None and picture.suffix not in PICTURES:
        raise InputError(f"--picture: {picture} must end with {' or '.join(PICTURES)}")
    try:
        if driver == PLAN:
            prepare = _prepared_by_plan(form, profiles, cluster, latency, base_preemption)
        else:
            prepare = (_prepared_by_type if form == GAVEL else _prepared)(form, profiles, cluster)
        for policy in policies:
            configured(policy)
        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            runs = [_simulated(trace, policy, prepare, bar) for trace, policy in product(traces, policies)]
    except ValueError as error:
        raise InputError(str(error)) from error
    if picture is not None:
        _draw(runs, picture)
    if as_json:
        click.echo(json.dumps({"runs": [_document(run, driver) for run in runs]}, indent=2))
    else:
        print_table(_COLUMNS, map(_row, runs), right=_COLUMNS[2:])
        click.echo("Accuracy gained: does not apply, as " + _NOTES["accuracyGained"] + ".")


def _check_driver(driver: str, form: str, latency: str | None, base_preemption: str | None) -> None:
    if driver == PLAN:
        if form == GAVEL:
            raise InputError(
                f"--driver {PLAN}: jobs of --format {GAVEL} choose types of GPUs, which the planner's policies do not "
                f"know; use --driver {ROUNDS}"
            )
        return
    for option, value in (("--latency", latency), ("--base-preemption", base_preemption)):
        if value is not None:
            raise InputError(
                f"{option} {value}: nothing takes time or asks for leave with --driver {driver}; "
                f"add --driver {PLAN}, or leave it out"
            )


def _draw(runs: Sequence[_Run], path: Path) -> None:
    from espalier_cli.simulation_picture import Course, draw_simulations  # matplotlib takes a second to import

    traces = {run.trace for run in runs}
    courses = [
        Course(
            label=run.policy if len(traces) == 1 else f"{run.trace.name} {run.policy}",
            gpus=run.simulation.gpus,
            spans=[(job.submitted_at, job.completed_at or job.submitted_at) for job in run.simulation.jobs],
            held=[job.held for job in run.simulation.jobs],
        )
        for run in runs
    ]
    try:
        draw_simulations(courses, path)
    except OSError as error:
        raise InputError(f"--picture: {path}: cannot be written: {error.strerror or error}") from error


def _prepared(form: str, profiles: Path | None, cluster: str) -> _Prepare:
    known = None if profiles is None else Profiles(profiles)
    nodes = nodes_of(cluster)

    def prepare(trace: Path, policy: Policy) -> _Simulation:
        jobs = READERS[form](trace, known, elasticity_of(policy))
        return _Simulation(jobs=jobs, gpus=sum(node.gpus for node in nodes), run=Rounds(jobs, nodes, policy).run)

    return prepare


def _prepared_by_plan(
    form: str, profiles: Path | None, cluster: str, latency: str | None, base_preemption: str | None
) -> _Prepare:
    known = None if profiles is None else Profiles(profiles)
    nodes, latencies = nodes_of(cluster), LATENCIES[latency or "none"]
    preemptible = base_preemption != BasePreemption.NEVER.value

    def prepare(trace: Path, policy: Policy) -> _Simulation:
        jobs = READERS[form](trace, known, elasticity_of(policy))
        planned = Planned(jobs, nodes, policy, latencies, preemptible=preemptible)
        return _Simulation(jobs=jobs, gpus=sum(node.gpus for node in nodes), run=planned.run)

    return prepare


def _prepared_by_type(form: str, profiles: Path | None, cluster: str) -> _Prepare:
    nodes = nodes_by_type(cluster)

    def prepare(trace: Path, policy: Policy) -> _Simulation:
        jobs = read_gavel(trace, Throughputs(profiles or trace.parent))
        return _Simulation(jobs=jobs, gpus=sum(node.gpus for node in nodes), run=TypedRounds(jobs, nodes, policy).run)

    return prepare


def _simulated(trace: Path, policy: str, prepare: _Prepare, bar: Progress) -> _Run:
    simulation = prepare(trace, configured(policy))
    task = bar.add_task(f"{trace.name} {policy}", total=len(simulation.jobs))
    began = time.perf_counter()
    simulation.run(lambda completed: bar.update(task, completed=completed))
    seconds = time.perf_counter() - began
    bar.remove_task(task)
    outcome = outcome_of(simulation.jobs, simulation.gpus)
    return _Run(trace=trace, policy=policy, simulation=simulation, outcome=outcome, seconds=seconds)


def _document(run: _Run, driver: str) -> dict[str, object]:
    outcome = run.outcome
    return {
        "trace": str(run.trace),
        "policy": run.policy,
        "driver": driver,
        "jobs": outcome.jobs,
        "averageJctSeconds": outcome.average_jct,
        "medianJctSeconds": outcome.median_jct,
        "p99JctSeconds": outcome.p99_jct,
        "makespanSeconds": outcome.makespan,
        "utilisation": outcome.utilisation,
        "restarts": outcome.restarts,
        "preemptions": outcome.preemptions,
        "evictions": outcome.evictions,
        "finishTimeFairness": None
        if outcome.fairness is None
        else {
            "mean": outcome.fairness.mean,
            "worst": outcome.fairness.worst,
            "unfairFraction": outcome.fairness.unfair,
        },
        "accuracyGained": None,
        "notApplicable": {
            metric: why for metric, why in _NOTES.items() if metric != "finishTimeFairness" or outcome.fairness is None
        },
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
        *(("-", "-") if found.fairness is None else (f"{found.fairness.mean:.2f}", f"{found.fairness.worst:.2f}")),
        str(found.restarts),
        str(found.preemptions),
        str(found.evictions),
    )
