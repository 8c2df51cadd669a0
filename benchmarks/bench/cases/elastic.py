"""The cost of joining and leaving a running job, and its throughput against DistributedDataParallel, on the CPU.

Real processes on the loopback interface, one thread each, with gloo. The benchmark acts as their scheduler and writes
their allocation files. The only change to the trainer: the leader records the end of each step
(`bench/joining/trainer.py`).
All figures are medians over repetitions, each in new processes; parts and models alternate, so that other load on the
machine affects all of them. Nothing is evaluated, and no checkpoint is written except the one after a growth.

1. `pauses`: the longest time between the ends of two steps, from the first step after a change to ten steps later. The
   changes: an extra worker that has just started joins; it leaves; it joins again after waiting; the model grows on
   both; the worker is killed. For a growth it is only the first gap, in which the heuristic is asked and what is new is
   sent; the longest of the next ten is that of the checkpoint, which is copied at the first and then written in the
   background. Models: the example's, and perceptrons of increasing size (Adam, 12 bytes of state per parameter).
2. In addition to the pauses, the seconds from the start of an extra worker's process (before any import) to the end of
   its first joint step.
3. `throughput`: examples a second of 1, 2 and 4 workers under both batch policies, compared with plain
   DistributedDataParallel with the same model, data, shares of a batch, optimizer and steps. Both are there at once and
   train in turn, in windows of two seconds, while the others stand still; ratios are of neighbouring windows.

Peers, while GPUs come and go: `volatile`.

With more workers than cores the workers share the cores: two cores cannot speed up four workers, and all workers are
slower while a process imports torch. Everything listens on loopback.
Not reported: CUDA and nccl; a network between the workers.

Takes an hour.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from bench.command import Option
from bench.joining.models import EXAMPLE, EXAMPLE_ROWS, Model, perceptron
from bench.joining.parts import Pauses, Rates, pauses, rates
from bench.printing import Parts, Table, progress
from espalier_core.types.job import ElasticBatch

PARTS = ("pauses", "throughput")
MILLIONS = (1.0, 5.0, 20.0, 100.0)
MOST_MILLIONS = 20.0
"""Eight processes of the largest model do not fit into the memory of a small machine."""
WINDOW_SECONDS = 2.0
OPTIONS = {
    "repetitions": Option(5),
    "millions": Option(list(MILLIONS), "parameters of the perceptrons"),
    "workers": Option([1, 2, 4], "whose throughput is measured"),
    "windows": Option(8, "pairs of windows of each throughput"),
    "only": Option(list(PARTS), "parts", PARTS),
}
QUICK = {"repetitions": 1, "millions": [], "workers": [1, 2], "windows": 1}


@dataclass
class Found:
    """All figures, one of each list a repetition."""

    pauses: dict[str, list[Pauses]] = field(default_factory=dict)
    rates: dict[tuple[str, ElasticBatch, int], list[Rates]] = field(default_factory=dict)


def measure(options: argparse.Namespace) -> Found:
    """Measure the requested parts."""
    found = Found()
    of_pauses = [EXAMPLE, *map(perceptron, options.millions)]
    cases = _cases(options)
    for repetition in range(options.repetitions):

        def say(what: str, of: Model, turn: int = repetition + 1) -> None:
            progress(f"{turn}/{options.repetitions}  {what}, {of.name}")

        if "pauses" in options.only:
            for model in of_pauses:
                say("pauses", model)
                found.pauses.setdefault(model.name, []).append(pauses(model))
        if "throughput" in options.only:
            for model, policy, world in cases:
                say(f"throughput of {world}, {policy}", model)
                got = rates(model, policy, world, options.windows, WINDOW_SECONDS)
                found.rates.setdefault((model.name, policy, world), []).append(got)
    return found


def _cases(options: argparse.Namespace) -> list[tuple[Model, ElasticBatch, int]]:
    """Return whose throughput is measured: model, policy, workers."""
    policies = (ElasticBatch.KEEP_GLOBAL,) if options.quick else ElasticBatch
    small = [(EXAMPLE_ROWS, policy, world) for policy in policies for world in options.workers]
    sizes = [size for size in sorted({1.0, *options.millions}) if size <= MOST_MILLIONS and options.millions]
    more = [world for world in options.workers if world > 1]
    return small + [(perceptron(size), ElasticBatch.KEEP_GLOBAL, world) for size in sizes for world in more]


def run(options: argparse.Namespace) -> Parts:
    """Measure, and give the tables."""
    found = measure(options)
    yield {
        "pauses": {name: [asdict(row) for row in rows] for name, rows in found.pauses.items()},
        "rates": {
            f"{name} {policy} {world}": [asdict(row) for row in rows]
            for (name, policy, world), rows in found.rates.items()
        },
    }
    if found.pauses:
        yield from (_pauses(found.pauses), _starts(found))
    if found.rates:
        yield _throughput(found)


def _pauses(found: dict[str, list[Pauses]]) -> Table:
    def cells(rows: list[Pauses]) -> list[str]:
        changes: list[Callable[[Pauses], float]] = [
            lambda row: row.first_join,
            lambda row: row.join,
            lambda row: row.leave,
            lambda row: row.growth,
            lambda row: row.checkpoint,
            lambda row: row.death,
        ]
        usual = [
            f"{1e3 * statistics.median(part):.1f}" for part in ([r.alone for r in rows], [r.together for r in rows])
        ]
        return [f"{rows[0].parameters:,}", *usual, *(_spread([1e3 * of(row) for row in rows]) for of in changes)]

    head = ["model", "parameters", "step", "of two", "join, new", "join", "leave", "growth", "checkpoint", "death"]
    title = f"Pause of the running worker, ms: median (longest) of {_count(found)}"
    return Table(title, head, [[name, *cells(rows)] for name, rows in found.items()])


def _starts(found: Found) -> Table:
    rows = [[name, _spread([row.start for row in rows], 1)] for name, rows in found.pauses.items()]
    return Table("From the start of a worker's process to its first joint step: median (longest)", ["model", "s"], rows)


def _throughput(found: Found) -> Table:
    rows = []
    for (name, policy, world), runs in found.rates.items():
        ours = [rate for run in runs for rate in run.elastic]
        theirs = [rate for run in runs for rate in run.plain]
        ratios = sorted(one / two for one, two in zip(ours, theirs, strict=True))
        low, high = (ratios[round(share * (len(ratios) - 1))] for share in (0.25, 0.75))
        figures = [f"{statistics.median(side):,.0f}" for side in (ours, theirs)]
        middle = f"{statistics.median(ratios):.2f} ({low:.2f}, {high:.2f})"
        rows.append([f"{name}, {policy}", str(world), *figures, middle])
    title = "Examples a second, medians of all windows; of the ratios with the quartiles"
    return Table(title, ["model, policy", "workers", "elastic", "plain DDP", "ratio"], rows)


def _spread(values: Sequence[float], places: int = 0) -> str:
    if len(values) == 1:
        return f"{values[0]:.{places}f}"
    return f"{statistics.median(values):.{places}f} ({max(values):.{places}f})"


def _count(found: dict[str, list[Any]]) -> int:
    return len(next(iter(found.values())))
