"""Measures the cost of joining and leaving a running job against torchrun and DistributedDataParallel, on the CPU.

    .venv/bin/python benchmarks/elastic.py [--quick] [--repetitions 5] [--millions 1 5 20 100] [--only PART ...]
        [--windows 8] [--markdown] [--json FILE]

Real processes on the loopback interface, one thread each, with gloo. The benchmark acts as their scheduler and writes
their allocation files. The only change to the trainer: the leader records the end of each step (`joining/trainer.py`).
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
4. `torchrun`: the same model under torchrun, which restarts all workers at each change. They resume from the checkpoint
   of their script (every 50 steps). Reported are the seconds without a step and the repeated steps. The options of
   torchrun for this are in `joining/parts.py`.

With more workers than cores the workers share the cores: two cores cannot speed up four workers, and all workers are
slower while a process imports torch. The stores of torchrun listen on all interfaces, everything else on loopback.
Not reported: CUDA and nccl; a network between the workers.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from harness.printed import command, described, machine, progress, rendered, versions
from joining.models import EXAMPLE, EXAMPLE_ROWS, Model, perceptron
from joining.parts import Pauses, Rates, Restarts, pauses, rates, restarts
from joining.place import StuckError
from load.processes import ProcessError

from espalier_core.types.job import ElasticBatch

PARTS = ("pauses", "throughput", "torchrun")
MILLIONS = (1.0, 5.0, 20.0, 100.0)
MOST_MILLIONS = 20.0
"""Eight processes of the largest model do not fit into the memory of a small machine."""
WINDOW_SECONDS = 2.0


@dataclass
class Found:
    """All figures, one of each list a repetition."""

    pauses: dict[str, list[Pauses]] = field(default_factory=dict)
    rates: dict[tuple[str, ElasticBatch, int], list[Rates]] = field(default_factory=dict)
    torchrun: list[Restarts] = field(default_factory=list)


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
        if "torchrun" in options.only:
            say("torchrun", EXAMPLE)
            found.torchrun.append(restarts(EXAMPLE))
    return found


def _cases(options: argparse.Namespace) -> list[tuple[Model, ElasticBatch, int]]:
    """Return whose throughput is measured: model, policy, workers."""
    if options.quick:
        return [(EXAMPLE_ROWS, ElasticBatch.KEEP_GLOBAL, world) for world in (1, 2)]
    small = [(EXAMPLE_ROWS, policy, world) for policy in ElasticBatch for world in (1, 2, 4)]
    sizes = [size for size in sorted({1.0, *options.millions}) if size <= MOST_MILLIONS]
    return small + [(perceptron(size), ElasticBatch.KEEP_GLOBAL, world) for size in sizes for world in (2, 4)]


def shown(found: Found, *, markdown: bool) -> str:
    """Return the tables for people."""
    tables: list[tuple[str, list[str], list[list[str]]]] = []
    if found.pauses:
        tables += [_pauses(found.pauses), _starts(found)]
    if found.rates:
        tables.append(_throughput(found))
    if found.torchrun:
        tables.append(_restarts(found))
    return "\n".join(rendered(title, head, rows, markdown=markdown) for title, head, rows in tables)


def _pauses(found: dict[str, list[Pauses]]) -> tuple[str, list[str], list[list[str]]]:
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
    return title, head, [[name, *cells(rows)] for name, rows in found.items()]


def _starts(found: Found) -> tuple[str, list[str], list[list[str]]]:
    rows = [[name, _spread([row.start for row in rows], 1)] for name, rows in found.pauses.items()]
    if found.torchrun:
        rows.append([f"{EXAMPLE.name}, torchrun", _spread([row.start for row in found.torchrun], 1)])
    return "From the start of a worker's process to its first joint step: median (longest)", ["model", "s"], rows


def _throughput(found: Found) -> tuple[str, list[str], list[list[str]]]:
    rows = []
    for (name, policy, world), runs in found.rates.items():
        ours, theirs = ([rate for run in runs for rate in side(run)] for side in (_ours, _theirs))
        ratios = sorted(one / two for one, two in zip(ours, theirs, strict=True))
        low, high = (ratios[round(share * (len(ratios) - 1))] for share in (0.25, 0.75))
        figures = [f"{statistics.median(side):,.0f}" for side in (ours, theirs)]
        middle = f"{statistics.median(ratios):.2f} ({low:.2f}, {high:.2f})"
        rows.append([f"{name}, {policy}", str(world), *figures, middle])
    title = "Examples a second, medians of all windows; of the ratios with the quartiles"
    return title, ["model, policy", "workers", "elastic", "plain DDP", "ratio"], rows


def _ours(rates: Rates) -> tuple[float, ...]:
    return rates.elastic


def _theirs(rates: Rates) -> tuple[float, ...]:
    return rates.plain


def _restarts(found: Found) -> tuple[str, list[str], list[list[str]]]:
    theirs, ours = found.torchrun, found.pauses.get(EXAMPLE.name, [])
    rows = []
    if ours:
        # Counted over all changes of a repetition: it is 0 of each where it is 0 of all.
        again = f"{max(row.redone for row in ours)}"
        rows += [
            ["elastic: a new worker joins", _spread([row.first_join for row in ours], 2), again],
            ["elastic: a worker leaves", _spread([row.leave for row in ours], 2), again],
            ["elastic: a worker is killed", _spread([row.death for row in ours], 2), again],
        ]
    rows += [
        ["torchrun: a node joins", _spread([r.join for r in theirs], 2), _spread([r.join_redone for r in theirs])],
        [
            "torchrun: a node is killed",
            _spread([r.death for r in theirs], 2),
            _spread([r.death_redone for r in theirs]),
        ],
    ]
    return f"Without a step, {EXAMPLE.name}: median (longest) of {len(theirs)}", ["", "s", "steps redone"], rows


def _spread(values: Sequence[float], places: int = 0) -> str:
    if len(values) == 1:
        return f"{values[0]:.{places}f}"
    return f"{statistics.median(values):.{places}f} ({max(values):.{places}f})"


def _count(found: dict[str, list[Any]]) -> int:
    return len(next(iter(found.values())))


def _as_json(found: Found) -> dict[str, Any]:
    return {
        "pauses": {name: [asdict(row) for row in rows] for name, rows in found.pauses.items()},
        "rates": {
            f"{name} {policy} {world}": [asdict(row) for row in rows]
            for (name, policy, world), rows in found.rates.items()
        },
        "torchrun": [asdict(row) for row in found.torchrun],
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick",
        action="store_true",
        help="the example alone, once, up to 2 workers, one pair of windows, no torchrun",
    )
    parser.add_argument("--repetitions", type=int, help="default: 5, or 1")
    parser.add_argument("--millions", type=float, nargs="*", help="parameters of the perceptrons; default 1 5 20 100")
    parser.add_argument("--windows", type=int, help="pairs of windows of each throughput; default: 8, or 1")
    parser.add_argument("--only", choices=PARTS, nargs="+", help="parts; default: all, or the first two")
    parser.add_argument("--markdown", action="store_true", help="print tables as Markdown")
    parser.add_argument("--json", type=Path, help="write the figures of each repetition there")
    options = parser.parse_args()
    options.repetitions = options.repetitions or (1 if options.quick else 5)
    options.windows = options.windows or (1 if options.quick else 8)
    options.only = options.only or (PARTS[:2] if options.quick else PARTS)
    if options.millions is None:
        options.millions = [] if options.quick else list(MILLIONS)
    if min(options.repetitions, options.windows) < 1 or any(size <= 0 for size in options.millions):
        parser.error("--repetitions and --windows must be at least 1, and --millions above 0")
    return options


def _ended(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def main() -> None:
    """Measure, print, write JSON where asked to."""
    options = _options()
    signal.signal(signal.SIGTERM, _ended)
    begun, before = time.monotonic(), machine()
    try:
        found = measure(options)
    except KeyboardInterrupt:
        raise SystemExit(128 + signal.SIGINT) from None
    except (ProcessError, StuckError) as error:
        raise SystemExit(f"error: {error}") from error
    about = {
        "machine": before,
        "versions": versions("torch"),
        "command": command(),
        "minutes": (time.monotonic() - begun) / 60,
    }
    print(shown(found, markdown=options.markdown))
    print(described(about))
    if options.json:
        options.json.write_text(json.dumps({**_as_json(found), **about}, indent=1) + "\n")


if __name__ == "__main__":
    main()
