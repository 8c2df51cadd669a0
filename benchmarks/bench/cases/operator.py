"""The operator on large clusters: how long until a GPU that comes free is lent, and what the operator uses. On Linux.

It uses a real etcd and kube-apiserver, the operator with the command line of its image and the rights of `deploy/`, and
nodes and pods without machines and containers:

- nodes with 8 GPUs each, about 8 kB of JSON as real ones; kwok keeps them alive, runs other people's pods and removes
  all pods that are deleted;
- no kube-scheduler: `bench/load/binder.py`, a separate process, binds pods to nodes with free GPUs, with one request
  per pod as kube-scheduler does, and lets them run. Its decisions take microseconds, so the operator does not wait for
  a busy scheduler; kwok, when it lists 25,000 pods again, ran none for half a minute;
- other people's pods hold all GPUs that the jobs' base workers do not need: the cluster is full, as real ones are; with
  `--idle-pods 20000`, that many pods without GPUs are bound in addition;
- leaders: each job has its own watch and reports every ten seconds, as the trainer does (`bench/load/lending.py`).

Each case has a separate cluster, and these stages:

1. The operator starts: seconds until its first plan.
2. All jobs are submitted, 32 requests at a time. The cluster has converged when every job that fits is admitted, its
   status written and its pods made and bound, and the first of the other jobs has no room.
3. All leaders train, and no GPU is free. GPUs are freed one by one at random times, whether or not the previous one has
   been lent (open loop), alternately by the end of a job and by the deletion of somebody else's pod. The time measured
   is from the API server's answer to the request that freed the GPU until the leader reads the grant from its watch.
   It is also shown in parts, as the benchmark's watch sees the pod that is lent the GPU: made, bound, running.
4. `plan` alone, ten times, on the last snapshot of the operator, in CPU time.

With `--apart`, kwok and this process, which make the load, keep off the operator's core, which is the last one. API
server and etcd run on all cores: with the load on one of two, they answer after 35 s.
Where there are several cases, the last column is the last case over the first.

Not reported: the load of real nodes, kube-scheduler and other clients on the API server, which shares its cores with
everything else here; etcd does not wait for its disk (`--unsafe-no-fsync`). The latency of `/healthz` is the longest
time for which the operator's event loop is busy, plus the effect of other processes on the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import subprocess
import tempfile
import time
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, TypeVar

from bench.command import BenchError, Option
from bench.load.cluster import Figures, ServerError, Tools
from bench.load.objects import Case, layout_of
from bench.load.processes import move, shared_out
from bench.load.stages import measure
from bench.printing import PROJECT, Parts, Table, progress

T = TypeVar("T")

OPTIONS: Final = {
    "nodes": Option([100, 5000, 10000], "nodes of each case"),
    "jobs": Option(1000),
    "events": Option(200, "GPUs that are freed; 0: none"),
    "spacing": Option(0.5, "mean seconds between two of them"),
    "report_seconds": Option(10.0, "seconds between a leader's reports; 0: on changes"),
    "idle_pods": Option(0, "pods of others without GPUs, about 5 kB of JSON each, over all nodes"),
    "apart": Option(False, "the operator on one core, the load on the others"),
    "seed": Option(0),
    "directory": Option(None, "keep data and logs in this folder, one subfolder per case", type=Path),
}
QUICK: Final = {"nodes": [100], "jobs": 50, "events": 20}
_GET_SECONDS: Final = 1800
_ROWS: Final = (
    ("jobs admitted", "admitted", "{:.0f}"),
    ("their pods", "workers", "{:.0f}"),
    ("start to first plan, s", "startSeconds", "{:.1f}"),
    ("CPU s until it rests", "startCpuSeconds", "{:.1f}"),
    ("all jobs submitted, s", "submitSeconds", "{:.1f}"),
    ("converged, s", "convergeSeconds", "{:.1f}"),
    ("operator's CPU s for that", "convergeCpuSeconds", "{:.1f}"),
    ("requests a job", "requestsPerJob", "{:.2f}"),
    ("/healthz waits, p99 ms", "convergeWaitP99Ms", "{:.0f}"),
    ("/healthz waits, max ms", "convergeWaitMaxMs", "{:.0f}"),
    ("GPUs freed", "events", "{:.0f}"),
    ("freed → seen, p50 ms", "reactionP50Ms", "{:.0f}"),
    ("freed → seen, p99 ms", "reactionP99Ms", "{:.0f}"),
    ("freed → seen, max ms", "reactionMaxMs", "{:.0f}"),
    ("by a job's end, p50 ms", "reactionEndP50Ms", "{:.0f}"),
    ("by a job's end, p99 ms", "reactionEndP99Ms", "{:.0f}"),
    ("by a deletion, p50 ms", "reactionDeletionP50Ms", "{:.0f}"),
    ("by a deletion, p99 ms", "reactionDeletionP99Ms", "{:.0f}"),
    ("freed → pod made, p50 ms", "partMadeP50Ms", "{:.0f}"),
    ("freed → pod made, p99 ms", "partMadeP99Ms", "{:.0f}"),
    ("made → bound, p50 ms", "partBoundP50Ms", "{:.0f}"),
    ("made → bound, p99 ms", "partBoundP99Ms", "{:.0f}"),
    ("bound → runs, p50 ms", "partRunsP50Ms", "{:.0f}"),
    ("bound → runs, p99 ms", "partRunsP99Ms", "{:.0f}"),
    ("runs → seen, p50 ms", "partSeenP50Ms", "{:.0f}"),
    ("runs → seen, p99 ms", "partSeenP99Ms", "{:.0f}"),
    ("cores the operator uses", "steadyCores", "{:.2f}"),
    ("cores the benchmark uses", "loadCores", "{:.2f}"),
    ("its requests a second", "steadyRequestsPerSecond", "{:.1f}"),
    ("API server's own time for its writes, p50 ms", "steadyWriteP50Ms", "{:.0f}"),
    ("API server's own time for its writes, p99 ms", "steadyWriteP99Ms", "{:.0f}"),
    ("/healthz waits, p99 ms", "steadyWaitP99Ms", "{:.0f}"),
    ("/healthz waits, max ms", "steadyWaitMaxMs", "{:.0f}"),
    ("plan() alone, median ms", "planMs", "{:.1f}"),
    ("plan() alone, max ms", "planMaxMs", "{:.1f}"),
    ("peak memory, MiB", "peakMiB", "{:.0f}"),
    ("warnings in its log", "warnings", "{:.0f}"),
)
_BY_VERB: Final = "requestsPerJob "


def table(cases: Sequence[Case], results: Sequence[Figures]) -> Table:
    """Return the table; a dash where a case has no such figure.

    Where there are several cases, the last column is the last of them over the first.
    """
    compared = len(cases) > 1
    head = [f"{case.nodes} nodes, {case.jobs} jobs" for case in cases]
    head += [f"{cases[-1].nodes} / {cases[0].nodes}"] if compared else []
    rows = []
    for title, name, shape in _ROWS:
        rows.append([title, *_cells(results, name, shape)])
        if name == "requestsPerJob":
            kinds = {kind for result in results for kind in result if kind.startswith(_BY_VERB)}
            often = [kind for kind in kinds if max(result.get(kind) or 0.0 for result in results) >= 0.01]
            rows += [[f"  {kind.removeprefix(_BY_VERB)}", *_cells(results, kind, shape)] for kind in sorted(often)]
    return Table("The operator", ["", *head], rows)


def _cells(results: Sequence[Figures], name: str, shape: str) -> list[str]:
    """Return the figure of each case, and where there are several the last over the first."""
    values = [result.get(name) for result in results]
    first, last = values[0], values[-1]
    ratio = None if not first or last is None else last / first
    return [_cell(value, shape) for value in values] + ([_cell(ratio, "{:.2f}")] if len(values) > 1 else [])


def _cell(value: float | None, shape: str) -> str:
    return "–" if value is None else shape.format(value)


def run(options: argparse.Namespace) -> Parts:
    """Measure each case, and give one table."""
    try:
        own, others = shared_out() if options.apart else (frozenset[int](), frozenset[int]())
        move(0, others)
        of_all = ("jobs", "events", "spacing", "report_seconds", "seed", "idle_pods")
        settings = {name: getattr(options, name) for name in of_all}
        cases = [Case(nodes=nodes, operator_cores=own, **settings) for nodes in options.nodes]
        for case in cases:
            layout_of(case)
    except ValueError as error:
        raise BenchError(str(error)) from error
    tools, begun = Tools(binaries=_got("envtest"), kwok=_got("kwok")), time.monotonic()

    def say(what: str) -> None:
        progress(f"{time.monotonic() - begun:5.0f} s  {what}")

    results: list[Figures] = []
    for case in cases:
        say(f"--- {case.nodes} nodes, {case.jobs} jobs")
        with _place(case, options.directory) as place:
            figures, server = _measured(measure(case, tools, place, say))
        results.append(figures)
        described = (asdict(case) | {"operator_cores": sorted(own)} for case in cases)
        yield {"cases": [{"case": case, "figures": row} for case, row in zip(described, results, strict=False)]}
    yield table(cases, results)
    kwok = subprocess.run([str(tools.kwok), "--version"], check=True, capture_output=True, text=True, timeout=60).stdout
    yield f"API server {server}, kwok {kwok.split()[2]}; " + (
        f"the operator on {_text(own)}, the load generator on {_text(others)}, the API server on all"
        if own
        else "all processes share all cores"
    )


def _text(cores: frozenset[int]) -> str:
    return ("core " if len(cores) == 1 else "cores ") + ", ".join(map(str, sorted(cores)))


def _measured(measuring: Coroutine[Any, Any, T]) -> T:
    """Return what is measured; of several problems, an error with a line for each. SIGTERM ends it as Ctrl-C does."""

    async def stoppable() -> T:
        task = asyncio.current_task()
        if task is not None:
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await measuring

    try:
        return asyncio.run(stoppable())
    except asyncio.CancelledError:
        raise SystemExit(128 + signal.SIGTERM) from None
    except BaseExceptionGroup as group:
        known, other = group.split((BenchError, ServerError))
        if other is not None or known is None:
            raise
        raise BenchError("\n".join(map(str, _leaves(known)))) from group
    except ServerError as error:
        raise BenchError(str(error)) from error


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


@contextmanager
def _place(case: Case, directory: Path | None) -> Iterator[Path]:
    """Give a folder for data and logs: under `directory`, or one that goes afterwards."""
    if directory is None:
        with tempfile.TemporaryDirectory(prefix="espalier-load-") as name:
            yield Path(name)
    else:
        place = directory.absolute() / f"{case.nodes}-nodes"
        place.mkdir(parents=True)
        yield place


def _got(what: str) -> Path:
    """Return what a script of hack/ finds or gets; its own words go to stderr."""
    result = subprocess.run([str(PROJECT / "hack" / what)], stdout=subprocess.PIPE, text=True, timeout=_GET_SECONDS)
    if result.returncode != 0:
        raise BenchError(f"hack/{what} has not got what the benchmark needs")
    return Path(result.stdout.strip())
