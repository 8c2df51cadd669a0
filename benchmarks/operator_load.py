"""Measures the operator on large clusters: `.venv/bin/python benchmarks/operator_load.py [--quick]`, Linux.

It uses a real etcd and kube-apiserver, the operator with the command line of its image and the rights of `deploy/`, and
nodes and pods without machines and containers:

- nodes with 8 GPUs each, about 8 kB of JSON as real ones; kwok keeps them alive, runs other people's pods and removes
  all pods that are deleted;
- no kube-scheduler: `load/binder.py`, a separate process, binds pods to nodes with free GPUs, with one request per pod
  as kube-scheduler does, and lets them run. Its decisions take microseconds, so the operator does not wait for a busy
  scheduler; kwok, when it lists 25,000 pods again, ran none for half a minute;
- other people's pods hold all GPUs that the jobs' base workers do not need: the cluster is full, as real ones are; with
  `--idle-pods 20000`, that many pods without GPUs are bound in addition;
- leaders: each job has its own watch and reports every ten seconds, as the trainer does (`load/leaders.py`).

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
import json
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from harness.printed import command, described, machine, progress, versions
from load.api import ApiError
from load.case import Case, layout_of
from load.cluster import PROJECT, Figures, Say, ServerError, Tools
from load.cores import move, shared_out
from load.processes import ProcessError
from load.stages import measure
from load.table import table
from load.world import StuckError

T = TypeVar("T")
_GET_SECONDS = 1800
_TROUBLES = (ApiError, ProcessError, ServerError, StuckError)


def main() -> None:
    """Measure and print one table."""
    options = _options()
    try:
        own, others = shared_out() if options.apart else (frozenset[int](), frozenset[int]())
    except ValueError as error:
        raise SystemExit(f"error: {error}") from error
    move(0, others)
    cases = [
        Case(
            nodes=nodes,
            jobs=options.jobs,
            events=options.events,
            spacing=options.spacing,
            report_seconds=options.report_seconds,
            seed=options.seed,
            idle_pods=options.idle_pods,
            operator_cores=own,
        )
        for nodes in options.nodes
    ]
    try:
        for case in cases:
            layout_of(case)
    except ValueError as error:
        raise SystemExit(f"error: {error}") from error
    tools = Tools(binaries=_got("envtest"), kwok=_got("kwok"))
    begun, before = time.monotonic(), machine()

    def say(what: str) -> None:
        progress(f"{time.monotonic() - begun:5.0f} s  {what}")

    results: list[Figures] = []

    def about(server: str) -> dict[str, Any]:
        return {
            "machine": before,
            "cores": f"the operator on {_text(own)}, the load generator on {_text(others)}, the API server on all"
            if own
            else "all processes share all cores",
            "versions": versions("kopf", "kubernetes", "aiohttp")
            | {"API server": server, "kwok": _said([str(tools.kwok), "--version"]).split()[2]},
            "commit": _said(["git", "-C", str(PROJECT), "describe", "--always", "--dirty", "--abbrev=12"]),
            "command": command(),
            "seconds": round(time.monotonic() - begun),
        }

    def measured(figures: Figures, server: str) -> None:
        """Write what is known after each case: a later one may fail, after a quarter of an hour."""
        results.append(figures)
        if options.json:
            described_cases = (asdict(case) | {"operator_cores": sorted(own)} for case in cases)
            rows = [{"case": case, "figures": row} for case, row in zip(described_cases, results, strict=False)]
            options.json.write_text(json.dumps({"cases": rows, **about(server)}, indent=1) + "\n")

    server = _run(_all(cases, tools, options.directory, say, measured))
    print(table(cases, results))
    print(f"\n{described(about(server))}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=_numbers, default=[100, 5000, 10000], help="nodes of each case: 100,5000,10000")
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--events", type=int, default=200, help="number of GPUs that are freed; 0: none")
    parser.add_argument("--spacing", type=float, default=0.5, help="mean seconds between two of them")
    parser.add_argument(
        "--report-seconds", type=float, default=10.0, help="seconds between a leader's reports; 0: on changes"
    )
    parser.add_argument(
        "--idle-pods", type=int, default=0, help="pods of others without GPUs, about 5 kB of JSON each, over all nodes"
    )
    parser.add_argument("--apart", action="store_true", help="the operator on one core, the load on the others")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="100 nodes, 50 jobs, 20 events: less than a minute")
    parser.add_argument("--json", type=Path, help="write all figures to this file, also those not in the table")
    parser.add_argument("--directory", type=Path, help="keep data and logs in this folder, one subfolder per case")
    options = parser.parse_args()
    if options.quick:
        options.nodes, options.jobs, options.events = [100], 50, 20
    return options


def _text(cores: frozenset[int]) -> str:
    return ("core " if len(cores) == 1 else "cores ") + ", ".join(map(str, sorted(cores)))


def _numbers(text: str) -> list[int]:
    numbers = [int(part) for part in text.split(",")]
    if min(numbers) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: a case needs nodes; give numbers from 1, as in 100,5000")
    return numbers


def _run(measuring: Coroutine[Any, Any, T]) -> T:
    """Run the benchmark; on a problem, print each in one line and return exit code 1."""
    try:
        return asyncio.run(measuring)
    except asyncio.CancelledError:
        raise SystemExit(128 + signal.SIGTERM) from None
    except KeyboardInterrupt:
        raise SystemExit(128 + signal.SIGINT) from None
    except BaseExceptionGroup as group:
        known, other = group.split(_TROUBLES)
        if other is not None or known is None:
            raise
        raise SystemExit("\n".join(f"error: {error}" for error in _leaves(known))) from group
    except _TROUBLES as error:
        raise SystemExit(f"error: {error}") from error


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


async def _all(
    cases: list[Case], tools: Tools, directory: Path | None, say: Say, measured: Callable[[Figures, str], None]
) -> str:
    """Measure all cases, one after the other, and return the API server's version; SIGTERM ends it as Ctrl-C does."""
    task = asyncio.current_task()
    if task is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    server = ""
    for case in cases:
        say(f"--- {case.nodes} nodes, {case.jobs} jobs")
        with _place(case, directory) as place:
            figures, server = await measure(case, tools, place, say)
        measured(figures, server)
    return server


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
        raise SystemExit(f"error: hack/{what} has not got what the benchmark needs")
    return Path(result.stdout.strip())


def _said(command: list[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.strip()


if __name__ == "__main__":
    main()
