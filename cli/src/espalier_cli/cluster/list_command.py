"""The command `espalier list`."""

from __future__ import annotations

import click

from espalier_cli.cluster.client import Cluster
from espalier_cli.cluster.jobs_table import COLUMNS, FIGURES, WIDE_COLUMNS, entry_of, row_of, sorted_jobs
from espalier_cli.cluster.options import EXIT_CODES, cluster_options, output_option
from espalier_cli.cluster.output import print_data, print_table
from espalier_cli.cluster.standing import job_of
from espalier_core.k8s.resources import JOBS


@click.command("list", epilog=EXIT_CODES)
@click.option("-n", "--namespace", metavar="NAME", help="Namespace of the jobs.  [default: the context's namespace]")
@click.option("-A", "--all-namespaces", is_flag=True, help="List the jobs of all namespaces.")
@output_option("table", "wide", "json", "yaml")
@cluster_options
def list_jobs(namespace: str | None, all_namespaces: bool, form: str, cluster: Cluster) -> None:
    """List the jobs of a cluster: their phase, their GPUs, and why they wait or are lent no more GPUs."""
    where = None if all_namespaces else namespace or cluster.namespace
    jobs = sorted_jobs(job_of(raw) for raw in cluster.list_all(JOBS, where).items)
    now = cluster.now()
    if form in ("json", "yaml"):
        print_data([entry_of(job) for job in jobs], form)
        return
    if not jobs:
        click.echo("no jobs" if where is None else f"no jobs in namespace {where}; use -A for all namespaces", err=True)
        return
    columns = WIDE_COLUMNS if form == "wide" else COLUMNS
    print_table(
        ("NAMESPACE", *columns) if all_namespaces else columns,
        [row_of(job, now, wide=form == "wide", namespaced=all_namespaces) for job in jobs],
        right=FIGURES,
    )
