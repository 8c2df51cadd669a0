"""The results of simulations, as tables and as JSON; with several seeds, means and paired differences."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from espalier_cli.cluster.output import Row, print_table
from espalier_lab.commands.simulation_sources import HAPPENED, Simulation
from espalier_lab.intervals import Interval
from espalier_lab.simulator.generate import PREFIX
from espalier_lab.simulator.outcome import SimulationOutcome

_COLUMNS: Final = (
    *("TRACE", "POLICY", "JOBS", "MEAN-JCT", "MEDIAN", "P99", "MAKESPAN", "IN-USE", "FTF", "WORST", "RESTARTS"),
    *("PREEMPTIONS", "EVICTIONS", "GAINED", "LENT-H"),
)
"""Times are in seconds."""
_NOTES: Final = {
    "finishTimeFairness": "the trace has jobs whose speed was not measured as their author asked for them",
    "accuracyGained": "no job of the trace grows",
    "lentGpuHours": "no job of the trace grows",
}
"""Reasons why a metric does not apply."""
_METRICS: Final[Mapping[str, tuple[str, Callable[[SimulationOutcome], float | None]]]] = {
    "averageJctSeconds": ("MEAN-JCT", lambda found: found.average_jct),
    "medianJctSeconds": ("MEDIAN", lambda found: found.median_jct),
    "p99JctSeconds": ("P99", lambda found: found.p99_jct),
    "makespanSeconds": ("MAKESPAN", lambda found: found.makespan),
    "utilisation": ("IN-USE", lambda found: found.utilisation),
    "finishTimeFairness": ("FTF", lambda found: None if found.fairness is None else found.fairness.mean),
    "accuracyGained": ("GAINED", lambda found: found.accuracy_gained),
    "lentGpuHours": ("LENT-H", lambda found: found.lent_gpu_hours),
}
"""Metrics over several seeds: the name in JSON, with the heading and the figure of one run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationRun:
    """One simulation that has ended; `seed` is None if nothing was drawn."""

    trace: str
    policy: str
    seed: int | None
    simulation: Simulation
    outcome: SimulationOutcome
    seconds: float


def document(runs: Sequence[SimulationRun], driver: str, *, several: bool) -> dict[str, Any]:
    """Return the runs as JSON; with `several` seeds, also their means and the differences from the first policy."""
    found: dict[str, Any] = {"runs": [_document(run, driver) for run in runs]}
    if several:
        found["means"] = [
            {"trace": trace, "policy": policy, "seeds": len(group)}
            | {name: interval._asdict() for name, interval in _means(group).items()}
            for trace, policy, group in _groups(runs)
        ]
        found["differences"] = [
            {"trace": trace, "policy": policy, "minus": minus, "lowerJctSeeds": lower}
            | {"averageJctSeconds": interval._asdict()}
            for trace, policy, minus, interval, lower, _ in _differences(runs)
        ]
    return found


def title_of(trace: str) -> str:
    """Return the title of a trace in tables: the name of its file, or of its generator."""
    return trace if trace.startswith(PREFIX) else Path(trace).name


def print_report(runs: Sequence[SimulationRun], *, several: bool) -> None:
    """Print a table with a row per run; for `several` seeds, with a row per policy, and the differences."""
    names = {run.trace: title_of(run.trace) for run in runs}
    if len(set(names.values())) < len(names):
        names = {trace: trace for trace in names}
    if not several:
        print_table(_COLUMNS, (_row(run, names[run.trace]) for run in runs), right=_COLUMNS[2:])
    else:
        columns = ("TRACE", "POLICY", "SEEDS", *(heading for heading, _ in _METRICS.values()))
        print_table(
            columns,
            (_mean_row(names[trace], policy, group) for trace, policy, group in _groups(runs)),
            right=columns[2:],
        )
        if differences := list(_differences(runs)):
            print_table(
                ("TRACE", "POLICY", "MINUS", "MEAN-JCT", "PART", "LOWER"),
                (
                    (names[trace], policy, minus, _told(interval, "+,.0f"), f"{part:+.1%}", f"{lower} of {seeds}")
                    for trace, policy, minus, interval, lower, (part, seeds) in differences
                ),
                right=("MEAN-JCT", "PART", "LOWER"),
            )
        click.echo("Means over seeds, with 95 % intervals by Student's t; differences are paired by seed.")
    if all(run.outcome.accuracy_gained is None for run in runs):
        click.echo(f"Accuracy gained: does not apply, as {_NOTES['accuracyGained']}.")


def _groups(runs: Sequence[SimulationRun]) -> Iterator[tuple[str, str, list[SimulationRun]]]:
    for trace, policy in dict.fromkeys((run.trace, run.policy) for run in runs):
        yield trace, policy, [run for run in runs if (run.trace, run.policy) == (trace, policy)]


def _means(group: Sequence[SimulationRun]) -> dict[str, Interval]:
    found = {}
    for name, (_, figure) in _METRICS.items():
        values = [value for run in group if (value := figure(run.outcome)) is not None]
        if len(values) == len(group):
            found[name] = Interval.of(values)
    return found


def _differences(runs: Sequence[SimulationRun]) -> Iterator[tuple[str, str, str, Interval, int, tuple[float, int]]]:
    """Yield the mean JCT of each other policy minus that of the first one, for the same trace and seed.

    A run without draws was simulated once, and is compared with each seed of the other.
    """
    groups = list(_groups(runs))
    for trace, policy, group in groups:
        minus, first = next((policy, group) for other, policy, group in groups if other == trace)
        if policy == minus:
            continue
        count = max(len(group), len(first))
        jcts = ([run.outcome.average_jct for run in runs] for runs in (group, first))
        pairs = list(zip(*(known * count if len(known) == 1 else known for known in jcts), strict=True))
        interval = Interval.of([ours - theirs for ours, theirs in pairs])
        part = interval.mean / statistics.fmean(theirs for _, theirs in pairs)
        yield trace, policy, minus, interval, sum(ours < theirs for ours, theirs in pairs), (part, len(pairs))


def _told(interval: Interval, form: str) -> str:
    half = "" if interval.high is None else f" ± {interval.high - interval.mean:{form.lstrip('+')}}"
    return f"{interval.mean:{form}}{half}"


def _mean_row(trace: str, policy: str, group: Sequence[SimulationRun]) -> Row:
    means = _means(group)
    forms = {"utilisation": ".0%", "finishTimeFairness": ".2f", "accuracyGained": ".4f", "lentGpuHours": ".3f"}
    cells = (_told(means[name], forms.get(name, ",.0f")) if name in means else "-" for name in _METRICS)
    return trace, policy, str(len(group)), *cells


def _document(run: SimulationRun, driver: str) -> dict[str, object]:
    outcome, fairness = run.outcome, run.outcome.fairness
    return {
        "trace": run.trace,
        "policy": run.policy,
        "driver": "history" if run.policy == HAPPENED else driver,
        **({} if run.seed is None else {"seed": run.seed}),
        "jobs": outcome.jobs,
        "averageJctSeconds": outcome.average_jct,
        "medianJctSeconds": outcome.median_jct,
        "p99JctSeconds": outcome.p99_jct,
        "makespanSeconds": outcome.makespan,
        "utilisation": outcome.utilisation,
        "restarts": outcome.restarts,
        "preemptions": outcome.preemptions,
        "evictions": outcome.evictions,
        "finishTimeFairness": fairness
        and {"mean": fairness.mean, "worst": fairness.worst, "unfairFraction": fairness.unfair},
        "accuracyGained": outcome.accuracy_gained,
        "lentGpuHours": outcome.lent_gpu_hours,
        "notApplicable": {metric: why for metric, why in _NOTES.items() if _METRICS[metric][1](outcome) is None},
        "seconds": run.seconds,
    }


def _row(run: SimulationRun, trace: str) -> Row:
    found = run.outcome
    return (
        trace,
        run.policy,
        str(found.jobs),
        *(f"{seconds:,.0f}" for seconds in (found.average_jct, found.median_jct, found.p99_jct, found.makespan)),
        f"{found.utilisation:.0%}",
        *(("-", "-") if found.fairness is None else (f"{found.fairness.mean:.2f}", f"{found.fairness.worst:.2f}")),
        str(found.restarts),
        str(found.preemptions),
        str(found.evictions),
        "-" if found.accuracy_gained is None else f"{found.accuracy_gained:.4f}",
        "-" if found.lent_gpu_hours is None else f"{found.lent_gpu_hours:.3f}",
    )
