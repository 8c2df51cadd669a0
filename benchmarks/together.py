"""How many workers should each job have, and where, if both are free? One after the other, compared with together.

python benchmarks/together.py [--loads .35 .7 1] [--episodes 40] [--train 80] [--processes 1] [--runs FILE] [--markdown]
    [--quick] [--decision JOBS NODES]

Clusters and jobs are those of `placement.py`, but a job can have 1 to 8 workers (docs/reports/learned-scheduling.md).
The rule `soonest` decides numbers of workers; nodes are chosen by a rule of placement, or by a model.
  consolidate, first-fit, emptiest    the rule's numbers, the usual rules of placement
  learnt prior, one after the other   the rule's numbers, nodes by a model with a prior learnt on other clusters
  learnt prior, together              the same model may change the numbers, too
  oracle, ...                         the same two with the true performance
`saved by ..., %` is by how many percent the mean completion time is below that of the row, in the mean over episodes,
with its 95 % interval (Student's t); `GPU-hours` are those that jobs held, a job; `restarts` a job, the start included.
No setting is chosen, so all episodes to judge are as good as new.
With --runs, a run that was stopped goes on with the episodes that it had played. Remove the file if a way changed.
With --decision, it prints the CPU time of one decision instead: about this number of jobs, none of which runs yet.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Final, NamedTuple

from harness.printed import command, environment, progress, rendered
from harness.statistics import paired

from espalier_core.files.documents import json_lines
from espalier_lab.scheduling.placement.beliefs import Belief, Prior
from espalier_lab.scheduling.placement.elastic import ElasticCluster
from espalier_lab.scheduling.placement.placers import RULES, Model, Oracle
from espalier_lab.scheduling.placement.prior import learn_prior
from espalier_lab.scheduling.placement.sharing import ByModel, ByRule, Sharing, run_elastic
from espalier_lab.scheduling.placement.tasks import Family, episode
from espalier_lab.scheduling.seed_split import SeedSplit

FAMILY: Final = Family()
FIRST: Final = "learnt prior, one after the other"
TOGETHER: Final = "learnt prior, together"
WAYS: Final = (*RULES, FIRST, TOGETHER, "oracle, one after the other", "oracle, together")


class Run(NamedTuple):
    """Which episode was played."""

    load: float
    way: str
    train: int
    """Episodes from which the prior was learnt."""
    index: int


class Played(NamedTuple):
    """What became of an episode; figures are means over jobs."""

    seconds: float
    gpu_hours: float
    restarts: float


def sharing(name: str, prior: Prior) -> Sharing:
    """Return what decides in an episode, by the name of its row."""
    if name in RULES:
        return ByRule(RULES[name])
    learnt = Model(Belief(prior, FAMILY.nodes))
    return ByModel(learnt if name in (FIRST, TOGETHER) else Oracle(), together=name.endswith("together"))


def play(name: str, prior: Prior, family: Family, index: int) -> Played:
    """Play the episode to judge of this number."""
    cluster = ElasticCluster(episode(family, SeedSplit.JUDGE, index))
    seconds, jobs = run_elastic(cluster, sharing(name, prior)), cluster.jobs.values()
    return Played(
        seconds,
        statistics.fmean(job.service for job in jobs) / 3600,
        statistics.fmean(job.restarts + 1 for job in jobs),
    )


def decision_seconds(jobs: int, nodes: int) -> float:
    """Return the CPU seconds of deciding numbers and nodes of this many jobs together, by the true performance."""
    drawn = episode(replace(FAMILY, jobs=jobs, nodes=nodes), SeedSplit.TRAIN, 0)
    at_once = replace(drawn, arrivals=tuple(replace(arrival, at=0.0) for arrival in drawn.arrivals))
    cluster = ElasticCluster(at_once)
    wanted = next(cluster.allocations())
    cpu = time.process_time()
    ByModel(Oracle(), together=True).places(cluster, wanted)
    return time.process_time() - cpu


def kept(path: Path | None) -> dict[Run, Played]:
    """Return the episodes that a file has; none where there is no file."""
    if path is None or not path.exists():
        return {}
    return {Run(*run): Played(*played) for run, played in map(json.loads, json_lines(path.read_text()))}


def keep(path: Path | None, run: Run, played: Played) -> None:
    """Append an episode to the file."""
    if path is not None:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps((run, played)) + "\n")


def saving(ours: Sequence[Played], theirs: Sequence[Played]) -> str:
    """Return by how many percent `ours` are below `theirs`, in the mean over episodes, with the interval."""
    percents = [100 * (1 - one.seconds / other.seconds) for one, other in zip(ours, theirs, strict=True)]
    found = paired(percents)
    return f"{found.mean:.1f} ({found.low:.1f}, {found.high:.1f})"


def table(found: dict[str, list[Played]], title: str, *, markdown: bool) -> str:
    """Return the figures of each way."""
    rows = []
    for name, theirs in found.items():
        seconds, hours, restarts = (statistics.fmean(column) for column in zip(*theirs, strict=True))
        saved = ["" if name == ours else saving(found[ours], theirs) for ours in (FIRST, TOGETHER)]
        rows.append((name, f"{seconds:,.0f}", *saved, f"{hours:.2f}", f"{restarts:.1f}"))
    head = ("decided by", "mean, s", "saved one after the other, %", "saved together, %", "GPU-hours", "restarts")
    return rendered(title, head, rows, markdown=markdown)


def main(arguments: Sequence[str] | None = None) -> None:
    """Learn the prior, play, and print a table for each load."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loads", type=float, nargs="+", default=[0.35, 0.7, 1.0])
    parser.add_argument("--episodes", type=int, default=40, help="to judge, for each load")
    parser.add_argument("--train", type=int, default=80, help="episodes to learn the prior on")
    parser.add_argument("--processes", type=int, default=1, help="episodes at a time")
    parser.add_argument("--runs", type=Path, help="a file for the episodes that were played")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--quick", action="store_true", help="2 episodes at loads of .35 and .7, 8 to learn")
    parser.add_argument("--decision", type=int, nargs=2, metavar=("JOBS", "NODES"), help="on 5 nodes at least")
    options = parser.parse_args(arguments)
    if options.decision:
        print(f"{command()}\n{environment('numpy')}\n{decision_seconds(*options.decision):.3f} s of CPU time")
        return
    loads, episodes, train = options.loads, options.episodes, options.train
    if options.quick:
        loads, episodes, train = [0.35, 0.7], 2, 8
    print(f"{command()}\n{environment('numpy')}\n{train} episodes to learn, {episodes} to judge", flush=True)
    known = kept(options.runs)
    prior = learn_prior([episode(FAMILY, SeedSplit.TRAIN, index) for index in range(train)])

    with ProcessPoolExecutor(options.processes, mp_context=get_context("spawn")) as pool:
        play_all = pool.map if options.processes > 1 else map
        for load in loads:
            found = dict[str, list[Played]]()
            for name in WAYS:
                calls = partial(play, name, prior, replace(FAMILY, load=load))
                runs = [Run(load, name, train, index) for index in range(episodes)]
                missing = [run for run in runs if run not in known]
                for run, one in zip(missing, play_all(calls, [run.index for run in missing]), strict=True):
                    known[run] = one
                    keep(options.runs, run, one)
                found[name] = [known[run] for run in runs]
                progress(f"load {load:g}, {name}: {statistics.fmean(each.seconds for each in found[name]):,.0f} s")
            print(table(found, f"load {load:g}, {episodes} episodes", markdown=options.markdown), flush=True)


if __name__ == "__main__":
    main()
