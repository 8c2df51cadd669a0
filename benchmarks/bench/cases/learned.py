"""How should GPUs be shared among jobs? Learnt allocation in DL2's cluster, compared with rules.

All ways of allocating see the same traces: 60 jobs of 8 types that come to 96 or 48 nodes
(docs/reports/learned-scheduling.md). The figures are mean completion times in slots of 20 minutes, averaged over
traces.
  drf, optimus                       the rules that the source (DL2) compares itself with
  optimus-by-share, optimus-ahead    Optimus by dominant share, and the same looking over valleys
  fixed counts                       each type's best numbers of workers and servers, by true speeds
  soonest                            log gain by dominant share × (60 s + rest) ** -½
  imitation                          the network that imitates `optimus-by-share`, before PPO
  learned                            after PPO; each seed learns once, on 48 and 96 nodes at the same time
  actor-critic                       the source's learner in the place of PPO: the same seeds and number of decisions
  learned on 6 types                 the same, without ever seeing jobs of two types, which are a quarter of these
`below` is by how many percent the completion time of `learned` is below that of the row, in the mean over traces of the
mean over seeds, with its 95 % interval (Student's t over traces). Traces to learn, choose and judge are never the same.

What was learnt is kept in --work-dir, and not learnt again. Takes 30 minutes.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
from matplotlib.figure import Figure

from bench.command import PICTURE, Option
from bench.printing import Parts, Table, progress
from bench.statistics import interval, saved
from espalier_lab.intervals import half_width
from espalier_lab.scheduling.allocation.judging import NODES, greedy, judge
from espalier_lab.scheduling.allocation.learning import learn_slots
from espalier_lab.scheduling.allocation.rules import RULES, fixed
from espalier_lab.scheduling.allocation.source import source
from espalier_lab.scheduling.learned.files import AllocationPolicy, make_policy, read_policy, write_policy
from espalier_lab.scheduling.learners.learner import LearnerSettings
from espalier_lab.scheduling.seed_split import SeedSplit

SETTINGS: Final = LearnerSettings()
UNSEEN: Final = ("seq2seq", "cnn-text-classification")
"""Types of which `learned on 6 types` never sees a job."""

OPTIONS: Final = {
    "seeds": Option(5),
    "nodes": Option(list(NODES), "sizes of the cluster to judge on"),
    "episodes": Option(10, "traces to judge on"),
    "decisions": Option(SETTINGS.decisions, "that PPO learns from"),
    "imitated": Option(SETTINGS.imitated, "decisions of the rule that are imitated before"),
    "beside": Option(2, "seeds of the other rows that learn; 0 leaves them out"),
    "source_seeds": Option(3, "of the row `actor-critic`; 0 leaves it out"),
    "picture": PICTURE,
}
QUICK: Final = {
    **{"seeds": 1, "episodes": 2, "decisions": 20_000, "imitated": 4_000, "beside": 0, "source_seeds": 0},
    "nodes": list(NODES[:1]),
}

Judged = dict[str, list[np.ndarray]]
"""By row: for each seed, the mean completion time of each trace."""


def learnt_once(folder: Path, name: str, learn: Callable[..., AllocationPolicy]) -> AllocationPolicy:
    """Learn a policy, or read it from the folder where it was learnt before."""
    path = folder / f"{name}.safetensors"
    if not path.exists():
        cpu = time.process_time()
        policy = learn(progress=lambda line: progress(f"  {line}"))
        results = {**policy.lineage.results, "cpuSeconds": round(time.process_time() - cpu, 1)}
        write_policy(make_policy(policy.network, policy.lineage.model_copy(update={"results": results})), path)
    policy = read_policy(path)
    progress(f"{name}: {policy.lineage.decisions:,} decisions, {policy.lineage.results}")
    return policy


def learnt(
    settings: LearnerSettings, seeds: int, title: str, folder: Path, kinds: Sequence[int] | None = None
) -> list[AllocationPolicy]:
    """Learn one policy a seed."""
    name = title.replace(" ", "-")
    return [
        learnt_once(folder, f"{name}-{seed}", partial(learn_slots, seed, settings, kinds=kinds))
        for seed in range(seeds)
    ]


def table(found: Judged, nodes: int) -> Table:
    """Return the completion times on clusters of this size."""
    ours = np.mean(found["learned"], axis=0)
    rows = []
    for name, seeds in found.items():
        theirs = np.mean(seeds, axis=0)
        means = [float(each.mean()) for each in seeds]
        by_seed = f"{min(means):.2f} to {max(means):.2f}" if len(seeds) > 1 else ""
        below = "" if name == "learned" else saved(ours, theirs).text(".1f")
        rows.append((name, interval([float(each) for each in theirs], 2), by_seed, below))
    head = ("allocated by", "slots", "by seed", "below, %")
    return Table(f"{nodes} nodes, {len(ours)} traces", head, rows)


def draw(found: dict[int, Judged], path: Path) -> None:
    """Draw the completion time of each trace, by way of allocating; `learned` with the range of its seeds."""
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    axes = figure.subplots(1, len(found), sharey=True, squeeze=False)[0]
    for axis, (nodes, judged) in zip(axes, found.items(), strict=True):
        order = np.argsort(judged["drf"][0])
        places = np.arange(len(order))
        for name, marker in (("drf", "v"), ("optimus", "s"), ("optimus-ahead", "."), ("fixed counts", "x")):
            axis.plot(places, judged[name][0][order], marker, markersize=4, label=name)
        seeds = np.array(judged["learned"])[:, order]
        middle = seeds.mean(0)
        half = [half_width([float(each) for each in seeds[:, place]]) if len(seeds) > 1 else 0.0 for place in places]
        axis.errorbar(places, middle, yerr=half, fmt="o", markersize=4, color="black", label="learned, 95 % over seeds")
        axis.set_title(f"{nodes} nodes")
        axis.set_xlabel("trace, in the order of DRF")
        axis.set_ylim(bottom=0)
    axes[0].set_ylabel("mean completion time, slots")
    axes[0].legend(fontsize=8)
    figure.savefig(path, dpi=120)


def run(options: argparse.Namespace) -> Parts:
    """Learn, judge, and give a table for each size of the cluster."""
    folder, seeds = options.work_dir, options.seeds
    settings, few = replace(SETTINGS, decisions=options.decisions), min(options.beside, seeds)
    settings = replace(settings, imitated=options.imitated)
    source_settings = replace(settings, learner="actor-critic")
    known = [index for index, name in enumerate(source().names) if name not in UNSEEN]
    policies = {
        "learned": learnt(settings, seeds, "learned", folder),
        "actor-critic": learnt(source_settings, min(options.source_seeds, seeds), "actor-critic", folder),
        "imitation": learnt(replace(settings, decisions=0), few, "imitation", folder),
        "learned on 6 types": learnt(settings, few, "learned on 6 types", folder, known),
    }
    best = np.array([np.unravel_index(table.argmin(), table.shape) for table in source().slots])
    rules = {**RULES, "fixed counts": fixed(best)}
    found: dict[int, Judged] = {}
    for nodes in sorted(options.nodes, reverse=True):
        found[nodes] = {name: [judge(rule, nodes, options.episodes, SeedSplit.JUDGE)] for name, rule in rules.items()}
        for name, each in ((name, each) for name, each in policies.items() if each):
            found[nodes][name] = [judge(greedy(one.network), nodes, options.episodes, SeedSplit.JUDGE) for one in each]
        yield table(found[nodes], nodes)
    if options.picture:
        draw(found, options.picture)
