"""How many workers should each job have, and where, if both are free? One after the other, compared with together.

Clusters and jobs are those of `placement.py`, but a job can have 1 to 8 workers (docs/reports/learned-scheduling.md).
The rule `soonest` decides numbers of workers; nodes are chosen by a rule of placement, or by a model.
  consolidate, first-fit, emptiest    the rule's numbers, the usual rules of placement
  learnt prior, one after the other   the rule's numbers, nodes by a model with a prior learnt on other clusters
  learnt prior, together              the same model may change the numbers, too
  oracle, ...                         the same two with the true performance
`saved by ..., %` is by how many percent the mean completion time is below that of the row, in the mean over episodes,
with its 95 % interval (Student's t); `GPU-hours` are those that jobs held, a job; `restarts` a job, the start included.
No setting is chosen, so all episodes to judge are as good as new.
A run that was stopped goes on with the episodes that it had played (--work-dir). Remove its file if a way changed.
With --decision, it prints the CPU time of one decision instead: about this number of jobs, none of which runs yet.

Takes 30 minutes of a core.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Final, NamedTuple

from bench.command import Option
from bench.printing import Parts, Table, progress
from bench.statistics import saved
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


OPTIONS: Final = {
    "loads": Option([0.35, 0.7, 1.0]),
    "episodes": Option(40, "to judge, for each load"),
    "train": Option(80, "episodes to learn the prior on"),
    "processes": Option(1, "episodes at a time"),
    "decision": Option([], "numbers of jobs and of nodes, at least 5", type=int),
}
QUICK: Final = {"loads": [0.35, 0.7], "episodes": 2, "train": 8}


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


def kept(path: Path) -> dict[Run, Played]:
    """Return the episodes that a file has; none where there is no file."""
    lines = json_lines(path.read_text(encoding="utf-8")) if path.exists() else ()
    return {Run(*run): Played(*played) for run, played in map(json.loads, lines)}


def table(found: dict[str, list[Played]], title: str) -> Table:
    """Return the figures of each way."""
    rows, seconds = [], {name: [each.seconds for each in played] for name, played in found.items()}
    for name, played in found.items():
        mean, hours, restarts = (statistics.fmean(column) for column in zip(*played, strict=True))
        less = ["" if name == ours else saved(seconds[ours], seconds[name]).text(".1f") for ours in (FIRST, TOGETHER)]
        rows.append((name, f"{mean:,.0f}", *less, f"{hours:.2f}", f"{restarts:.1f}"))
    head = ("decided by", "mean, s", "saved one after the other, %", "saved together, %", "GPU-hours", "restarts")
    return Table(title, head, rows)


def run(options: argparse.Namespace) -> Parts:
    """Learn the prior, play, and give a table for each load."""
    if options.decision:
        jobs, nodes = options.decision
        yield f"{decision_seconds(jobs, nodes):.3f} s of CPU time"
        return
    file = options.work_dir / "episodes.jsonl"
    known = kept(file)
    prior = learn_prior([episode(FAMILY, SeedSplit.TRAIN, index) for index in range(options.train)])
    with ProcessPoolExecutor(options.processes, mp_context=get_context("spawn")) as pool, file.open("a") as keep:
        play_all = pool.map if options.processes > 1 else map
        for load in options.loads:
            found = dict[str, list[Played]]()
            for name in WAYS:
                calls = partial(play, name, prior, replace(FAMILY, load=load))
                runs = [Run(load, name, options.train, index) for index in range(options.episodes)]
                missing = [each for each in runs if each not in known]
                for each, one in zip(missing, play_all(calls, [each.index for each in missing]), strict=True):
                    known[each] = one
                    print(json.dumps((each, one)), file=keep, flush=True)
                found[name] = [known[each] for each in runs]
                progress(f"load {load:g}, {name}: {statistics.fmean(each.seconds for each in found[name]):,.0f} s")
            yield table(found, f"load {load:g}, {options.episodes} episodes")
