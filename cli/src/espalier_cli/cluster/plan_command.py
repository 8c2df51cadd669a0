"""The commands `espalier snapshot` (the scheduler's view, as a file) and `espalier plan` (its decisions)."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import click

from espalier_cli.cluster.client import fetch
from espalier_cli.cluster.decisions import COLUMNS, SHARE_COLUMNS, document_of, rows_of, share_rows, wakes
from espalier_cli.cluster.options import EXIT_CODES, cluster_options, output_option, settings_options
from espalier_cli.cluster.output import count, print_data, print_table
from espalier_cli.errors import InputError
from espalier_cli.options import policy_option
from espalier_core.base import repeated
from espalier_core.console import RealRange, output_file
from espalier_core.files.documents import write_text_atomically
from espalier_core.k8s.access import Cluster
from espalier_operator.kube.inspection import KubeSettings, seen_by_operator
from espalier_operator.model import Snapshot, SnapshotError
from espalier_operator.planner import plan_safely
from espalier_operator.policies.learned import FALLBACK, PolicyFileError
from espalier_operator.policies.settings import configured

_MOST_WORKERS = 10_000
"""Limit on workers, from the specification of a job."""
_MOST_GPUS = 100_000
"""Limit on the GPUs of a worker or a node; some policies iterate over them."""
_MOST = 10**30
"""Limit on bytes and other resources: more than Kubernetes counts (2⁶³ in a container), but still divisible."""
_HINT = "espalier snapshot --output FILE makes one; one edited by hand must stay whole"


@click.command(epilog=EXIT_CODES)
@click.option(
    "-n", "--namespace", metavar="NAME", help="Only jobs of this namespace, like an operator that watches it."
)
@output_file("Output file; - is stdout.", click.Path(path_type=Path, dir_okay=False, allow_dash=True), Path("-"))
@cluster_options
@partial(settings_options, shown=True)
@policy_option("Scheduling policy that the snapshot names.  [default: the operator's]", None)
def snapshot(namespace: str | None, output: Path, cluster: Cluster, settings: KubeSettings) -> None:
    """Write what the scheduler sees now (nodes, workers, promises, jobs and rules) as JSON.

    The scheduler is stateless, so this command creates the snapshot from the cluster's objects, with the operator's own
    code. `espalier plan --snapshot FILE` shows the decisions on it, so that a bug report can become a test.
    """
    settings = replace(settings, watch_namespaces=() if namespace is None else (namespace,))
    lists = fetch(cluster, settings, namespace)
    seen = seen_by_operator(lists, cluster.now(), settings)
    made = seen.snapshot
    if str(output) == "-":
        click.echo(made.to_json(), nl=False)
    else:
        try:
            write_text_atomically(output, made.to_json())
        except OSError as error:
            raise InputError(f"{output}: cannot be written: {error.strerror or error}") from error
    jobs, nodes = count(len(made.jobs), "job"), count(len(made.nodes), "node")
    where = "" if str(output) == "-" else f"{output}: "
    click.echo(f"{where}{jobs}, {nodes}, {count(len(made.workers), 'worker')}", err=True)
    for key, problems in seen.left_out.items():
        click.echo(
            f"{key} is not in the snapshot, because the scheduler cannot run it: {'; '.join(problems)}", err=True
        )


def _unpacked(body: bytes) -> bytes:
    return gzip.decompress(body) if body.startswith(b"\x1f\x8b") else body


def _check(seen: Snapshot) -> None:
    """Reject duplicate names, and counts that no job and no node can have (`SnapshotError`): these determine the time
    and memory of planning, and 0 or excessive values cannot be divided by.
    """
    for place, names in (
        ("jobs.key", [job.key for job in seen.jobs]),
        ("nodes.name", [node.name for node in seen.nodes]),
        ("queues.name", [queue.name for queue in seen.queues]),
    ):
        for twice, number in repeated(names).items():
            raise SnapshotError(f"{place}: {twice!r} is there {number} times; must be unique")
    for index, job in enumerate(seen.jobs):
        place, terms = f"jobs.{index}", job.terms
        counts = {"min_replicas": terms.min_replicas, "max_replicas": terms.max_replicas}
        _within(_MOST_WORKERS, place, {"extra": job.extra})
        _within(_MOST_WORKERS, f"{place}.terms", counts, least=1)
        _within(_MOST_GPUS, f"{place}.terms", {"gpus_per_worker": terms.gpus_per_worker}, least=1)
        _within(_MOST, f"{place}.terms.constraints.requests", dict(terms.constraints.requests))
    for index, node in enumerate(seen.nodes):
        _within(_MOST_GPUS, f"nodes.{index}", {"allocatable": node.allocatable})
        _within(_MOST, f"nodes.{index}.resources", node.resources)
        _within(_MOST, f"nodes.{index}.used", node.used)
    for index, worker in enumerate(seen.workers):
        _within(_MOST_GPUS, f"workers.{index}", {"gpus": worker.gpus})
        _within(_MOST, f"workers.{index}.constraints.requests", dict(worker.constraints.requests))


def _within(most: int, place: str, counts: Mapping[str, int], *, least: int = 0) -> None:
    for name, value in counts.items():
        if not least <= value <= most:
            raise SnapshotError(f"{place}.{name}: is {value:,}; must be from {least} to {most:,}")


@click.command(epilog=EXIT_CODES)
@click.option(
    "--snapshot",
    "source",
    type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
    required=True,
    help="File from `espalier snapshot`, or from the operator's audit log; - is stdin.",
)
@click.option(
    "--after",
    "seconds",
    type=RealRange(min=0),
    default=0.0,
    show_default=True,
    metavar="SECONDS",
    help="Plan as if this much time had passed, and nothing else had changed.",
)
@policy_option("What another scheduling policy would decide.  [default: the snapshot's]", None)
@output_option("table", "json", "yaml")
def plan(source: Path, seconds: float, policy: str | None, form: str) -> None:
    """Print the decisions of the scheduler on a snapshot: every action and every refusal, with its reason, and the
    share of each job by the policy.

    This runs the operator's own planner and needs no cluster.
    """
    name = "stdin" if str(source) == "-" else str(source)
    try:
        with click.open_file(str(source), "rb") as file:
            seen = Snapshot.from_json(_unpacked(file.read()).decode("utf-8-sig"))
        _check(seen)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{name}: is not complete gzip: {error}", _HINT) from error
    except OSError as error:
        raise InputError(f"{name}: cannot be read: {error.strerror or error}", _HINT) from error
    except UnicodeDecodeError as error:
        raise InputError(f"{name}: is not UTF-8 text", _HINT) from error
    except SnapshotError as error:
        raise InputError(f"{name}: {error}", _HINT) from error
    if policy is not None and policy != seen.rules.policy:
        seen = replace(seen, policy_memory={})  # another policy would not understand it
    now = seen.taken_at + seconds
    try:
        chosen = configured(policy or seen.rules.policy)
    except ValueError as error:
        raise InputError(f"{name}: rules.policy: {error}", "--policy decides by another one") from error
    resumed = plan_safely(seen, chosen, now)
    if isinstance(resumed.raised, PolicyFileError):
        raise InputError(f"--policy {policy}: {resumed.raised}") from resumed.raised
    made = resumed.plan
    deciding = policy or seen.rules.policy
    if (unusable := resumed.unusable) is not None:
        cause = f"{type(unusable).__name__}: {unusable}"
        click.echo(f"{name}: policy {deciding} cannot use policy_memory and starts with none ({cause})", err=True)
    if form != "table":
        print_data({"policy": deciding, **document_of(made, now)}, form)
        return
    if rows := rows_of(made, now):
        print_table(COLUMNS, rows)
        click.echo()
        if made.fallback:
            click.echo(f"Policy {deciding} does not decide: {made.fallback}. {FALLBACK.name} does:\n")
        else:
            click.echo(f"Policy {deciding} serves {chosen.queue_order}:\n")
        print_table(SHARE_COLUMNS, share_rows(made))
        click.echo("".join(f"Ignored: {what}.\n" for what in made.ignored))
    else:
        click.echo("There is nothing to decide: all jobs are finished.")
    click.echo(wakes(made, now))
