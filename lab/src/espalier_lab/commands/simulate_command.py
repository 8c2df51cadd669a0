"""`espalier simulate`: the jobs of a trace under one policy or several, side by side."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from espalier_cli.errors import InputError
from espalier_cli.options import drawing, picture_option
from espalier_core.types.job import BasePreemption
from espalier_lab.commands.simulation_report import SimulationRun, document, print_report, title_of
from espalier_lab.commands.simulation_shadow import documents_of, policies_with, print_shadows, shadows_of
from espalier_lab.commands.simulation_sources import (
    AUDIT,
    BAD,
    FORMATS,
    GAVEL,
    HAPPENED,
    LARGER,
    PLAN,
    ROUNDS,
    TraceSource,
)
from espalier_lab.simulator.columns import Selection
from espalier_lab.simulator.generate import PREFIX
from espalier_lab.simulator.latencies import LATENCIES
from espalier_lab.simulator.outcome import outcome_of
from espalier_lab.simulator.traces import FIELDS
from espalier_operator.model import DEFAULT_POLICY
from espalier_operator.policies.settings import configured_here, takes_seed


@click.command()
@click.argument("traces", nargs=-1, required=True, metavar="TRACE...")
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    default="csv",
    show_default=True,
    help="Format of each TRACE.",
)
@click.option(
    "--columns",
    default="",
    metavar="FIELD=COLUMN,...",
    help="For csv: the columns of timestamp, duration (or start and end), num_gpus, job, where their names are others. "
    "COLUMN may be a product, as nodes*gpus_per_node or submitted_ms/1000, or #3: the third of a file without header.",
)
@click.option(
    "--keep",
    metavar="COLUMN=VALUE,...",
    multiple=True,
    help="For csv and philly: only the jobs with one of these values, as state=COMPLETED,TIME*. Repeatable.",
)
@click.option(
    "--skip",
    type=click.Choice([BAD, LARGER]),
    multiple=True,
    help="Leave out and count, instead of ending: for csv and philly, lines that cannot be used (bad); jobs with more "
    "GPUs than the cluster has (larger). Repeatable.",
)
@click.option(
    "--profiles",
    type=click.Path(path_type=Path),
    help="What was measured: for pollux, the folder of applications; for gavel, simulation_throughputs.json or its "
    "folder, by default that of the trace.",
)
@click.option(
    "--cluster",
    metavar="NODESxGPUS",
    help="Nodes and their GPUs: 16x4, or 8x4,2x8. For gavel, numbers of V100, P100 and K80 GPUs: 8:16:24. "
    "For audit, by default that of the history.",
)
@click.option(
    "--policy",
    "policies",
    metavar="NAME[:KEY=VALUE,...]",
    multiple=True,
    help=f"Scheduling policy, with its settings. Repeatable.  [default: {DEFAULT_POLICY}]",
)
@click.option(
    "--driver",
    type=click.Choice([ROUNDS, PLAN]),
    default=ROUNDS,
    show_default=True,
    help="rounds: the policy decides each minute, and its decisions take effect at once. plan: the operator's planner "
    "and its state machine of jobs carry them out.",
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
    "--shadow",
    metavar="NAME[:KEY=VALUE,...]",
    help="For audit: also show what this policy would have decided at each recorded plan. Without --policy, simulate "
    "the operator's policy and this one.",
)
@click.option(
    "--seeds",
    type=click.IntRange(1, 1000),
    metavar="N",
    help="Simulate with the seeds 0 to N − 1 of generated jobs, and of policies that draw at random; print means, and "
    "paired differences from the first policy, with 95 % intervals.",
)
@picture_option("completion times, unfinished jobs and GPUs held")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def simulate(
    traces: tuple[str, ...],
    form: str,
    columns: str,
    keep: tuple[str, ...],
    skip: tuple[str, ...],
    profiles: Path | None,
    cluster: str | None,
    policies: tuple[str, ...],
    driver: str,
    latency: str | None,
    base_preemption: str | None,
    shadow: str | None,
    seeds: int | None,
    picture: Path | None,
    as_json: bool,
) -> None:
    """Simulate the jobs of each TRACE on a cluster, under each policy in turn, and compare their completion times.

    A TRACE is a file, or generate:NAME[:KEY=VALUE,...] for jobs drawn at random: poisson, diurnal.

    Formats: csv (timestamp,duration,num_gpus, also by the names of Helios, Acme and Slurm's sacct), philly (JSON,
    cluster_job_log), pollux (name,time,application,num_replicas,batch_size, with --profiles), gavel (jobs on V100, P100
    and K80 GPUs, with --cluster V100S:P100S:K80S, servers of 4, 4 and 8 GPUs, and rounds of 360 s), audit (the folder
    of the operator's audit log: what happened, compared with the same jobs under each policy). Times are seconds.
    """
    try:
        source = TraceSource(
            form=form,
            profiles=profiles,
            cluster=cluster,
            driver=driver,
            latency=latency,
            base_preemption=base_preemption,
            selection=Selection.of(columns, keep, FIELDS.names),
            skip=skip,
        )
        traces = tuple(dict.fromkeys(traces))  # a repeated trace is not another sample
        shadows = [] if shadow is None else shadows_of(traces, form, shadow)
        policies = policies_with(shadow, shadows, policies) if shadow is not None else policies or (DEFAULT_POLICY,)
        policies = tuple(dict.fromkeys(policies))
        drawn = [trace for trace in traces if trace.startswith(PREFIX)]
        kind = {"typed": form == GAVEL, "continuous": driver == PLAN}
        random = [policy for policy in policies if takes_seed(policy, **kind)]
        if seeds is not None and not (drawn or random):
            raise InputError(
                f"--seeds {seeds}: nothing is drawn at random: no TRACE is generated ({PREFIX}poisson), and no policy "
                "takes a seed; leave it out"
            )
        parts = TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        with Progress(*parts, console=Console(stderr=True), transient=True) as bar:
            runs = [_happened(source, trace) for trace in traces if form == AUDIT]
            runs += [
                _simulated(source, trace, policy, seed, policy in random, bar)
                for trace, policy in product(traces, policies)
                for seed in _seeds(seeds, trace in drawn, policy in random)
            ]
    except ValueError as error:
        raise InputError(str(error)) from error
    for note in source.notes:
        click.echo(note, err=True)
    if as_json:
        found = document(runs, driver, several=seeds is not None)
        click.echo(json.dumps(found if shadow is None else {**found, "shadows": documents_of(shadows)}, indent=2))
    else:
        print_report(runs, several=seeds is not None)
        print_shadows(shadows)
    if picture is not None:
        _draw(runs, picture)


def _draw(runs: Sequence[SimulationRun], path: Path) -> None:
    from espalier_lab.commands.simulation_picture import (  # matplotlib takes a second to import
        DrawnSimulation,
        draw_simulations,
    )

    traces = {run.trace for run in runs}
    courses = [
        DrawnSimulation(
            label=" ".join(
                [run.policy]
                + ([title_of(run.trace)] if len(traces) > 1 else [])
                + ([] if run.seed is None else [f"seed {run.seed}"])
            ),
            gpus=run.simulation.gpus,
            spans=[(job.submitted_at, job.completed_at or job.submitted_at) for job in run.simulation.jobs],
            held=[job.held for job in run.simulation.jobs],
        )
        for run in runs
    ]
    with drawing(path):
        draw_simulations(courses, path)


def _seeds(seeds: int | None, trace_is_drawn: bool, policy_draws: bool) -> Sequence[int | None]:
    """Return the seeds for simulating a trace under a policy; one None if nothing is drawn."""
    if trace_is_drawn or (policy_draws and seeds is not None):
        return range(seeds or 1)
    return [None]


def _simulated(
    source: TraceSource, trace: str, policy: str, seed: int | None, draws: bool, bar: Progress
) -> SimulationRun:
    chosen = f"{policy}{',' if ':' in policy else ':'}seed={seed}" if draws and seed is not None else policy
    simulation = source.prepare(trace, configured_here(chosen), seed or 0)
    name = f"{title_of(trace)} {policy}" + ("" if seed is None else f" seed {seed}")
    task = bar.add_task(name, total=len(simulation.jobs))
    began = time.perf_counter()
    simulation.run(lambda completed: bar.update(task, completed=completed))
    seconds = time.perf_counter() - began
    bar.remove_task(task)
    outcome = outcome_of(simulation.jobs, simulation.gpus)
    return SimulationRun(trace=trace, policy=policy, seed=seed, simulation=simulation, outcome=outcome, seconds=seconds)


def _happened(source: TraceSource, trace: str) -> SimulationRun:
    simulation = source.happened(trace)
    if left_out := source.left_out(trace):
        click.echo(f"{trace}: {left_out} jobs that never ran on a GPU, or do not fit, are left out", err=True)
    outcome = outcome_of(simulation.jobs, simulation.gpus)
    return SimulationRun(trace=trace, policy=HAPPENED, seed=None, simulation=simulation, outcome=outcome, seconds=0.0)
