"""The command `espalier list`: one row per job."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from contextlib import closing
from typing import Any, Final

import click

from espalier_cli.cluster.options import EXIT_CODES, cluster_options, output_option
from espalier_cli.cluster.output import Row, print_data, print_table, short
from espalier_cli.errors import InputError
from espalier_core.k8s.access import Cluster
from espalier_core.k8s.errors import cluster_error
from espalier_core.k8s.jobs import Job, job_of, phase, score_of, standing
from espalier_core.k8s.reflector import Changed, Deleted, Disconnected, Failed, Rhythm, followed
from espalier_core.k8s.resources import JOBS
from espalier_core.types.status import ConditionType
from espalier_core.types.task import accuracy_of, other_than_accuracy

COLUMNS = ("NAME", "PHASE", "GPUS", "EXTRA", "DEPTH", "ADAPTATIONS", "BUDGET-LEFT", "AGE", "REASON")
WIDE_COLUMNS = (*COLUMNS, "QUEUE", "TYPE", "RESTARTS", "PREEMPTIONS", "EPOCH", "SCORE", "MESSAGE")
FIGURES = (*COLUMNS[2:-1], "RESTARTS", "PREEMPTIONS", "EPOCH", "SCORE")
"""Columns that are flush right."""
_PATIENCE_SECONDS: Final = 300.0


@click.command("list", epilog=EXIT_CODES)
@click.option("-n", "--namespace", metavar="NAME", help="Namespace of the jobs.  [default: the context's namespace]")
@click.option("-A", "--all-namespaces", is_flag=True, help="List the jobs of all namespaces.")
@click.option("-w", "--watch", is_flag=True, help="Go on: a new table on a terminal, elsewhere a line for each change.")
@output_option("table", "wide", "json", "yaml")
@cluster_options
def list_jobs(namespace: str | None, all_namespaces: bool, watch: bool, form: str, cluster: Cluster) -> None:
    """List the jobs of a cluster: their phase, their GPUs, and why they wait or are lent no more GPUs."""
    where = None if all_namespaces else namespace or cluster.namespace
    if watch:
        if form == "yaml":
            raise InputError("--watch: prints no YAML; use -o json, which is a job a line")
        _watch(cluster, where, form)
        return
    jobs = cluster.jobs(where)
    now = cluster.now()
    if form in ("json", "yaml"):
        print_data([entry_of(job) for job in jobs], form)
        return
    if not jobs:
        click.echo("no jobs" if where is None else f"no jobs in namespace {where}; use -A for all namespaces", err=True)
        return
    _print(jobs, now, form, namespaced=all_namespaces)


def _print(jobs: Iterable[Job], now: float, form: str, *, namespaced: bool) -> None:
    columns = WIDE_COLUMNS if form == "wide" else COLUMNS
    print_table(
        ("NAMESPACE", *columns) if namespaced else columns,
        [row_of(job, now, wide=form == "wide", namespaced=namespaced) for job in jobs],
        right=FIGURES,
    )


def _watch(cluster: Cluster, where: str | None, form: str) -> None:
    """Print the jobs, and again any change but their age, until Ctrl-C or until the API server stays away."""
    known: dict[str, Job] = {}
    shown: dict[str, dict[str, Any]] = {}
    redraws = sys.stdout.isatty() and form != "json"
    if not redraws and form != "json":
        click.echo("  ".join(("NAMESPACE", *(WIDE_COLUMNS if form == "wide" else COLUMNS))))
    with closing(followed(cluster.client, where, [(JOBS, "", ())], Rhythm(patience=_PATIENCE_SECONDS))) as news:
        for given in news:
            match given:
                case _, Changed(object=raw):
                    job, gone = job_of(raw), False
                case _, Deleted(object=raw):
                    job, gone = job_of(raw), True
                case _, Failed(error=error):
                    raise cluster_error(error)
                case _, Disconnected(error=error):
                    click.echo(f"{error}; trying again for up to {_PATIENCE_SECONDS:.0f} s", err=True)
                    continue
                case _:
                    continue
            known.pop(job.uid, None)
            if not gone:
                known[job.uid] = job
            entry = entry_of(job) | ({"phase": "Deleted"} if gone else {})
            if shown.get(job.uid) == entry:
                continue
            shown[job.uid] = entry
            if redraws:
                click.clear()
                _print(sorted(known.values(), key=lambda each: each.key), cluster.now(), form, namespaced=where is None)
            elif form == "json":
                click.echo(json.dumps(entry))
            else:
                cells = row_of(job, cluster.now(), wide=form == "wide", namespaced=True)
                click.echo("  ".join([cells[0], cells[1], entry["phase"], *(cell or "-" for cell in cells[3:])]))


def row_of(job: Job, now: float, *, wide: bool = False, namespaced: bool = False) -> Row:
    """Return the cells of a job under `COLUMNS` (`WIDE_COLUMNS`), with its namespace first if `namespaced`."""
    status, why = job.status, standing(job)
    reason = "" if why.reason is None else str(why.reason)
    cells = [
        job.name,
        phase(job),
        str(status.allocation.gpus),
        str(status.scheduling.extra),
        str(status.training.depth or ""),
        str(status.adaptation_count),
        short(job.remaining_seconds),
        short(now - job.created_at),
        reason or "not seen by an operator",
    ]
    if wide:
        score = score_of(job)
        cells += [
            str(job.spec.get("queue") or ""),
            status.scheduling.gpu_type or "",
            str(status.restarts),
            str(status.preemptions),
            str(status.training.epoch or ""),
            "" if score is None else str(score) if other_than_accuracy(score) else f"{score.value:.3f}",
            why.message,
        ]
    return [job.namespace, *cells] if namespaced else cells


def entry_of(job: Job) -> dict[str, Any]:
    """Return the row in plain JSON types."""
    status, why = job.status, standing(job)
    admitted = job.status.condition(ConditionType.ADMITTED)
    return {
        "namespace": job.namespace,
        "name": job.name,
        "phase": phase(job),
        "admitted": admitted is not None and admitted.status == "True",
        "gpus": status.allocation.gpus,
        "extraWorkers": status.scheduling.extra,
        "gpuType": status.scheduling.gpu_type,
        "depth": status.training.depth,
        "parameters": status.training.parameters,
        "epoch": status.training.epoch,
        "accuracy": accuracy_of(score_of(job)),
        "score": None if (score := score_of(job)) is None else score.to_json(),
        "adaptations": status.adaptation_count,
        "budgetSeconds": job.budget_seconds,
        "budgetRemainingSeconds": job.remaining_seconds,
        "restarts": status.restarts,
        "preemptions": status.preemptions,
        "createdAt": job.created_at,
        "reason": None if why.reason is None else str(why.reason),
        "message": why.message,
    }
