"""How should GPUs be shared among jobs? Learnt allocation in DL2's cluster, compared with rules.

python benchmarks/learned.py [--seeds 5] [--source-seeds 3] [--beside 2] [--episodes 10] [--decisions 160000]
    [--nodes 96 48] [--work-dir DIR] [--picture FILE] [--markdown] [--quick]

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
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
from harness.printed import command, environment, progress, rendered
from harness.statistics import half_width, paired
from matplotlib.figure import Figure

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

Judged = dict[str, list[np.ndarray]]
"""By row: for each seed, the mean completion time of each trace."""


def learnt(
    settings: LearnerSettings, seeds: int, title: str, folder: Path, kinds: Sequence[int] | None = None
) -> list[AllocationPolicy]:
    """Learn one policy a seed, or read it from the folder where it was learnt before."""
    found = []
    for seed in range(seeds):
        path = folder / f"{title.replace(' ', '-')}-{seed}.safetensors"
        if not path.exists():
            cpu = time.process_time()
            policy = learn_slots(seed, settings, kinds=kinds, progress=lambda line: progress(f"  {line}"))
            spent = time.process_time() - cpu
            results = {**policy.lineage.results, "cpuSeconds": round(spent, 1)}
            write_policy(make_policy(policy.network, policy.lineage.model_copy(update={"results": results})), path)
        policy = read_policy(path)
        print(f"{title}, seed {seed}: {policy.lineage.decisions:,} decisions, {policy.lineage.results}", flush=True)
        found.append(policy)
    return found


def table(found: Judged, nodes: int, *, markdown: bool) -> str:
    """Return the completion times on clusters of this size."""
    ours = np.mean(found["learned"], axis=0)
    rows = []
    for name, seeds in found.items():
        theirs = np.mean(seeds, axis=0)
        below = paired([float(100 * (1 - one / other)) for one, other in zip(ours, theirs, strict=True)])
        means = [float(each.mean()) for each in seeds]
        by_seed = f"{min(means):.2f} to {max(means):.2f}" if len(seeds) > 1 else ""
        cell = "" if name == "learned" else f"{below.mean:.1f} ({below.low:.1f}, {below.high:.1f})"
        middle = f"{statistics.fmean(means):.2f} ± {half_width([float(each) for each in theirs]):.2f}"
        rows.append((name, middle, by_seed, cell))
    head = ("allocated by", "slots", "by seed", "below, %")
    return rendered(f"{nodes} nodes, {len(ours)} traces", head, rows, markdown=markdown)


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


def main(arguments: Sequence[str] | None = None) -> None:
    """Learn, judge and print a table for each size of the cluster."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--nodes", type=int, nargs="*", help="sizes of the cluster to judge on; default: 96 and 48")
    parser.add_argument("--episodes", type=int, default=10, help="traces to judge on")
    parser.add_argument("--decisions", type=int, default=SETTINGS.decisions, help="that PPO learns from")
    parser.add_argument("--beside", type=int, default=2, help="seeds of the other rows that learn; 0 leaves them out")
    parser.add_argument("--source-seeds", type=int, default=3, help="of the row `actor-critic`; 0 leaves it out")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--work-dir", type=Path, help="keep policies here; those that are there are not learnt again")
    parser.add_argument("--picture", type=Path, help="draw completion times by trace into this PNG file")
    parser.add_argument("--quick", action="store_true", help="1 seed, 2 traces, 20,000 decisions, 48 nodes: 60 s")
    options = parser.parse_args(arguments)
    seeds, episodes, decisions = options.seeds, options.episodes, options.decisions
    source_seeds = options.source_seeds
    settings, sizes, few = SETTINGS, tuple(options.nodes or NODES), min(options.beside, seeds)
    if options.quick:
        seeds, episodes, decisions, few, source_seeds, sizes = 1, 2, 20_000, 0, 0, NODES[:1]
        settings = replace(settings, imitated=4_000)
    print(f"{command()}\n{environment('torch', 'numpy')}\n{seeds} seeds, {decisions:,} decisions, {episodes} traces")
    folder = options.work_dir or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    settings = replace(settings, decisions=decisions)
    known = [index for index, name in enumerate(source().names) if name not in UNSEEN]
    policies = {
        "learned": learnt(settings, seeds, "learned", folder),
        "actor-critic": learnt(
            replace(settings, learner="actor-critic"), min(source_seeds, seeds), "actor-critic", folder
        ),
        "imitation": learnt(replace(settings, decisions=0), few, "imitation", folder),
        "learned on 6 types": learnt(settings, few, "learned on 6 types", folder, known),
    }
    best = np.array([np.unravel_index(table.argmin(), table.shape) for table in source().slots])
    rules = {**RULES, "fixed counts": fixed(best)}
    found: dict[int, Judged] = {}
    for nodes in sorted(sizes, reverse=True):
        found[nodes] = {name: [judge(rule, nodes, episodes, SeedSplit.JUDGE)] for name, rule in rules.items()}
        for name, each in ((name, each) for name, each in policies.items() if each):
            found[nodes][name] = [judge(greedy(one.network), nodes, episodes, SeedSplit.JUDGE) for one in each]
        print(table(found[nodes], nodes, markdown=options.markdown), flush=True)
    if options.picture is not None:
        draw(found, options.picture)


if __name__ == "__main__":
    main()
