"""What is a GPU worth that comes and goes? Espalier, torchft, torchrun's elastic agent, stop and restart.

Up to four workers train the digits network, each a batch of 64 a step, on simulated devices: a layer takes its time,
in which the process sleeps, so a worker is a GPU although workers share cores. One GPU always stays. Real processes,
gloo by the loopback interface. Traces (bench/volatile/traces.py), with notice of 5 s before a GPU goes, and without:
  calm     three GPUs, no change
  minute   a GPU comes or goes every 60 s
  twenty   every 20 s
  spot     90 minutes of spot instances on AWS, scaled to the trace's length, and 12 instances to 4 GPUs
Ways (bench/volatile/ways.py), each with a checkpoint about every 2 s:
  Espalier, and Espalier that grows once
  torchft      0.2.0, as in its train_ddp.py; its lighthouse with a heartbeat of 1 s (default: 5 s)
  torchrun     with DistributedDataParallel; bench/volatile/ways.py has its options, which are better than its defaults
  restart      DistributedDataParallel, ended and started with the new number of workers at each change
`share` is the useful examples per GPU-second over those of DistributedDataParallel without any change (`restart`,
calm). A GPU counts from its coming until its process has ended. `again` is what was computed and is not in the last
weights, of all. `stop` is the longest time without a step. Medians over seeds, with the 95 % interval of the mean.
torchft is installed into an environment in --work-dir, with pip. A run that was stopped goes on.

Takes twelve minutes for each way and seed, divided by --processes.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

from bench.command import BenchError, Option
from bench.printing import Parts, Table, progress
from bench.runs import prepare_process, run_all
from bench.statistics import paired
from bench.volatile.playing import Key, Played, play
from bench.volatile.traces import SECONDS
from bench.volatile.ways import WAYS
from espalier_core.base import Record
from espalier_lab.intervals import half_width
from espalier_lab.run_store import RunFile

OPTIONS: Final = {
    "ways": Option(list(WAYS), choices=tuple(WAYS)),
    "traces": Option(list(SECONDS), choices=tuple(SECONDS)),
    "notice": Option(["with", "without"], choices=("with", "without")),
    "seeds": Option(5),
    "first_seed": Option(0),
    "length": Option(1.0, "factor on the time of traces"),
    "processes": Option(1, "runs at a time; a run needs half a core"),
}
QUICK: Final = {
    "ways": ["Espalier", "restart"],
    "traces": ["calm", "twenty"],
    "seeds": 1,
    "length": 0.15,
    "processes": 2,
}
KEEPS: Final = True
TORCHFT: Final = "torchft==0.2.0"
REFERENCE: Final = ("restart", "calm")


class Head(Record):
    """What runs of a file have in common."""

    version: int = 1


def run(options: argparse.Namespace) -> Parts:
    """Play what is missing, and give a table for each trace."""
    store = RunFile(options.work_dir / "volatile.jsonl", Played, key_of, Head())
    wanted = list(keys(options))
    missing = store.missing(wanted)
    peers = options.work_dir / "peers"
    if any(key.way == "torchft" for key in missing):
        install(peers)
    prepare_process()

    def done(count: str, played: Played) -> None:
        store.add(played)
        kind = "with" if played.notice else "without"
        progress(
            f"{count}: {played.way}, {played.trace} {kind} notice, seed {played.seed}: {rate(played):.0f} examples a "
            f"GPU-second, stop {played.stop:.1f} s, load {played.load:.1f}"
        )

    run_all(play, [(key, peers.absolute()) for key in missing], options.processes, done)
    found = [store[key] for key in wanted]
    yield {"runs": [played.model_dump() for played in found]}
    yield from tables(found)


def key_of(played: Key) -> Key:
    """Return what was played."""
    return Key.model_validate({name: getattr(played, name) for name in Key.model_fields})


def keys(options: argparse.Namespace) -> Iterable[Key]:
    """Give what is to be played: seed by seed, so that the seeds that are done have all."""
    for seed, name, notice, way in itertools.product(
        range(options.first_seed, options.first_seed + options.seeds), options.traces, options.notice, options.ways
    ):
        if name != "calm" or notice == options.notice[0]:
            warned = name != "calm" and notice == "with"
            yield Key(way=way, trace=name, notice=warned, seed=seed, length=options.length)


def install(folder: Path) -> None:
    """Make an environment that has torchft, and all that this one has: the same torch."""
    if (folder / "bin" / "torchft_lighthouse").exists():
        return
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    inside = folder / Path(sysconfig.get_path("purelib")).relative_to(sys.prefix)
    (inside / "project.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    got = subprocess.run(
        [str(folder / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check", TORCHFT],
        capture_output=True,
        text=True,
    )
    if got.returncode:
        raise BenchError(f"{TORCHFT} cannot be installed; leave it out (--ways): {got.stderr.strip()}")


def rate(played: Played) -> float:
    """Return the useful examples per GPU-second."""
    return played.useful / played.gpu_seconds


def tables(found: Sequence[Played]) -> Iterable[Table]:
    """Give the figures of each trace, with and without notice."""
    undisturbed = [rate(played) for played in found if (played.way, played.trace) == REFERENCE]
    whole = statistics.median(undisturbed) if undisturbed else float("nan")
    for (name, notice), cases in itertools.groupby(found_by_trace(found), lambda played: (played.trace, played.notice)):
        rows, runs = [], list(cases)
        ours = {played.seed: rate(played) / whole for played in runs if played.way == "Espalier"}
        for way in dict.fromkeys(played.way for played in runs):
            own = [played for played in runs if played.way == way]
            ahead = [ours[played.seed] - rate(played) / whole for played in own if played.seed in ours]
            columns: list[tuple[Callable[[Played], float], int]] = [
                (lambda played: rate(played) / whole, 3),
                (lambda played: played.stop, 2),
                (lambda played: 100 * (1 - played.useful / played.computed), 1),
                (lambda played: float("nan") if played.loss is None else played.loss, 3),
            ]
            cells = [middle([of(played) for played in own], places) for of, places in columns]
            less = "" if way == "Espalier" or len(ahead) < 2 else paired(ahead).cell
            rows.append([way, cells[0], less, *cells[1:], str(sum(played.mended for played in own))])
        kind = "" if name == "calm" else ", with notice" if notice else ", without notice"
        head = ["way", "share", "Espalier is ahead by", "stop, s", "again, %", "loss", "mended"]
        yield Table(f"{name}{kind}, seeds: {len({played.seed for played in runs})}", head, rows)


def found_by_trace(found: Sequence[Played]) -> list[Played]:
    """Return the runs, those of a trace together, with notice first."""
    return sorted(found, key=lambda played: (list(SECONDS).index(played.trace), not played.notice))


def middle(values: Sequence[float], places: int) -> str:
    """Return the median, and half the interval of the mean; without what there is not."""
    values = [value for value in values if value == value]
    if not values:
        return "–"
    half = f" ± {half_width(values):.{places}f}" if len(values) > 1 else ""
    return f"{statistics.median(values):.{places}f}{half}"
