"""Where should workers run? Learnt performance models, compared with rules, on clusters whose performance is hidden.

Each episode is a cluster of 12 nodes with 4 GPUs, and 120 jobs (docs/reports/learned-scheduling.md); with a shift,
cluster and workload change in the middle. All ways of placing see the same jobs. `saved` is by how many percent the
mean completion time is below that of the row, in the mean over episodes, with its 95 % interval (Student's t).
  consolidate, first-fit, emptiest, random    the usual rules
  frozen      a model that learns until the middle of the jobs, and no more
  online      a model that begins at a prior that knows nothing of clusters
  learnt prior    the same model, with a prior learnt on other clusters; no hidden parameter is looked at
  RL2, frozen    a network that learnt by PPO on other clusters what to do, without a model; it remembers the
      episode, and also sees what it chose last and what that cost
  online, nodes kept whole    the same model, which also counts what it costs to open an empty node; so for others
  true prior    the model again, with the distribution from which the kinds of models and the clusters were drawn
  slow nodes known    `online`, but knows from the start how slow each node is
  oracle      knows the true performance; no model can be expected to be better by much
The rows of these are means over seeds of learning, episode by episode; what each seed gives is printed first.
The settings of each model (memory, optimism) are chosen on episodes of their own. So no episode is used twice.
A run that was stopped goes on with the networks that it had learnt (--work-dir). Empty the folder if learning changed.
The picture shows how much later than with the oracle jobs end, one group after the other as they came: do ways of
placing learn in an episode, and again after a change?

Takes 20 minutes of a core.
"""

from __future__ import annotations

import argparse
import itertools
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Final

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray

from bench.command import PICTURE, Option
from bench.printing import Parts, Table, progress
from bench.statistics import error_bars, paired, saved
from espalier_lab.scheduling.placement.beliefs import Belief, Prior, wide_prior
from espalier_lab.scheduling.placement.cluster import PendingGang, PlacementCluster
from espalier_lab.scheduling.placement.placers import RULES, Model, Oracle, PlacementRule, Placer, Random
from espalier_lab.scheduling.placement.placers import run as play
from espalier_lab.scheduling.placement.prior import learn_prior
from espalier_lab.scheduling.placement.recurrent import RecurrentActor
from espalier_lab.scheduling.placement.reinforced import SETTINGS, frozen, learn_remembering
from espalier_lab.scheduling.placement.tasks import (
    KIND_DEVIATION,
    KINDS,
    TASK_DEVIATION,
    Family,
    PlacementEpisode,
    PlacementTask,
    draw_task,
    episode,
    kinds,
)
from espalier_lab.scheduling.seed_split import SeedSplit

Floats = NDArray[np.float64]
MEMORIES: Final = (math.inf, 40_000.0)
"""Seconds after which 1/e is left of what was measured."""
OPTIMISMS: Final = (0.0, 0.2)
"""Standard deviations by which what is not known is taken for better than expected."""
OPTIONS: Final = {
    "train": Option(80, "episodes to learn the prior on"),
    "choose": Option(20, "episodes to choose settings on, with and without a shift"),
    "judge": Option(40, "episodes to report, with and without a shift"),
    "load": Option(Family().load, "of the clusters"),
    "seeds": Option(3, "of the network; 0 leaves it out"),
    "decisions": Option(SETTINGS.decisions, "that it learns from"),
    "processes": Option(1, "seeds at a time"),
    "picture": PICTURE,
}
QUICK: Final = {"train": 8, "choose": 2, "judge": 3, "seeds": 1, "decisions": 2_000}
JUDGED: Final = ("online", "learnt prior", "learnt prior, nodes kept whole", "RL2, frozen")
"""What others are compared with, where it was judged."""
DRAWN: Final = ("emptiest", "RL2, frozen", "online", "learnt prior")
GROUPS: Final = 6
"""Of jobs, in the picture; the change is between two of them."""
FAMILY: Final = Family()
KEPT: Final = ", nodes kept whole"
"""Added to the name of a row for which it costs something to open an empty node."""
ORACLE_OPENING: Final = 1.0
"""What it costs the oracle."""


OPENINGS: Final = (0.5, 1.0, 2.0)
"""What it costs to open an empty node, where that counts; in the other rows nothing."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Settings of a model."""

    memory: float
    optimism: float
    opening: float = 0.0

    def __str__(self) -> str:
        """Return them as text."""
        return f"memory {self.memory:g} s, optimism {self.optimism:g}, opening {self.opening:g}"


def model(
    prior: Prior, setting: Setting, until: Callable[[PlacementEpisode], float]
) -> Callable[[PlacementEpisode], Placer]:
    """Return what makes the model of an episode."""
    return lambda drawn: Model(
        Belief(prior, drawn.family.nodes, memory_seconds=setting.memory),
        optimism=setting.optimism,
        opening=setting.opening,
        learns_until=until(drawn),
    )


def true_prior() -> Prior:
    """Return what is true of all clusters of the family: a prior that is learnt can know no more."""
    table, covariance = kinds(), np.diag([KIND_DEVIATION**2] * (2 * KINDS + 2))
    covariance[KINDS : 2 * KINDS, KINDS : 2 * KINDS] += TASK_DEVIATION**2
    tasks = [draw_task(FAMILY, np.random.default_rng((SeedSplit.TRAIN, 1, index))) for index in range(2_000)]
    links = np.log([(task.nic_bytes, task.uplink_bytes) for task in tasks])
    covariance[-2:, -2:] = np.cov(links.T)
    slowness = np.log([task.slowness for task in tasks])
    means = [*(kind.sensitivity for kind in table), *(kind.pressure for kind in table), *links.mean(0)]
    return Prior((float(slowness.mean()), float(slowness.var())), np.array(means), covariance)


class Informed:
    """The model that knows nothing of clusters but how slow each node is, at first and after a change."""

    def __init__(self, drawn: PlacementEpisode) -> None:
        """Begin at the wide prior."""
        self._belief = Belief(wide_prior(), drawn.family.nodes)
        self._model = Model(self._belief)
        self._task: PlacementTask | None = None

    def choose(self, cluster: PlacementCluster, pending: PendingGang) -> int:
        """Return the index of the model's candidate."""
        task = cluster.episode.task_at(cluster.now)
        if task is not self._task:
            self._task = task
            self._belief.take_slowness(np.log(task.slowness))
        return self._model.choose(cluster, pending)


def always(drawn: PlacementEpisode) -> float:
    """Learn to the end."""
    return math.inf


def until_the_middle(drawn: PlacementEpisode) -> float:
    """Learn until half of the jobs have come, which is when the cluster shifts if it does."""
    return drawn.arrivals[len(drawn.arrivals) // 2].at


def seconds(episodes: Sequence[PlacementEpisode], make: Callable[[PlacementEpisode], Placer]) -> Floats:
    """Return (episodes, jobs), the completion times of jobs in the order in which they came."""
    clusters = [PlacementCluster(drawn) for drawn in episodes]
    for cluster in clusters:
        play(cluster, make(cluster.episode))
    return np.array([cluster.completion_seconds for cluster in clusters])


def chosen(
    prior: Prior,
    settings: Sequence[Setting],
    episodes: Sequence[PlacementEpisode],
    until: Callable[[PlacementEpisode], float],
) -> Setting:
    """Return those of `settings` with which the model is best on `episodes`."""
    means = {setting: seconds(episodes, model(prior, setting, until)).mean() for setting in settings}
    return min(settings, key=lambda setting: means[setting])


def actor(seed: int, decisions: int, keep: Path, family: Family) -> RecurrentActor:
    """Return what RL² learns by this seed; it is read from the folder if it is there."""
    cpu = time.process_time()
    file = keep / f"RL2, seed {seed}, {decisions} decisions, load {family.load:g}.pt"
    if file.exists():
        kept = RecurrentActor(family.nodes // family.rack_nodes, family.rack_nodes)
        kept.load_state_dict(torch.load(file, weights_only=True))
        print(f"RL2, seed {seed}: read from {file}", flush=True)
        return kept

    def line(text: str) -> None:
        progress(f"RL2, seed {seed}: {text}")

    learnt = learn_remembering(seed, replace(SETTINGS, decisions=decisions), family, line)
    print(f"RL2, seed {seed}: {time.process_time() - cpu:.0f} s of CPU time", flush=True)
    torch.save(learnt.state_dict(), part := file.with_suffix(".part"))
    part.replace(file)
    return learnt


def workers(processes: int) -> Executor:
    """Return where seeds are learnt and judged: here, or in this number of processes."""
    if processes == 1:
        return ThreadPoolExecutor(1)
    return ProcessPoolExecutor(processes, mp_context=get_context("spawn"))


def reinforced(
    pool: Executor, actors: Sequence[RecurrentActor], judge: int, family: Family, *, shift: bool
) -> dict[str, Floats]:
    """Return the row without a model: completion times (episodes, jobs), in the mean over seeds; none without seeds."""
    if not actors:
        return {}
    played = partial(frozen, episodes=judge, purpose=SeedSplit.JUDGE, shift=shift, family=family)
    by_seed = np.array([each.result() for each in [pool.submit(played, each) for each in actors]])
    means = ", ".join(f"{each.mean():,.0f}" for each in by_seed)
    print(f"RL2, frozen, shift {shift}, seconds by seed: {means}", flush=True)
    return {"RL2, frozen": by_seed.mean(0)}


def table(found: dict[str, Floats], title: str) -> Table:
    """Return mean completion times, and what the models save."""
    rows, judged = [], [name for name in JUDGED if name in found]
    for name, theirs in found.items():
        mean = theirs.mean(1)
        less = ["" if name == ours else saved(found[ours].mean(1), mean).text(".1f") for ours in judged]
        rows.append((name, f"{mean.mean():,.0f}", f"{np.median(mean):,.0f}", *less))
    head = ("placed by", "mean, s", "median, s", *(f"saved by {name}, %" for name in judged))
    return Table(title, head, rows)


def draw(judged: dict[str, dict[str, Floats]], path: Path) -> None:
    """Draw by how much later than with the oracle jobs end, by `GROUPS` of them as they came, with 95 % intervals."""
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    axes = figure.subplots(1, len(judged), sharey=True, squeeze=False)[0]
    for axis, (title, found) in zip(axes, judged.items(), strict=True):
        groups = np.array_split(np.arange(found["oracle"].shape[1]), GROUPS)
        for place, name in enumerate(name for name in DRAWN if name in found):
            later = [
                paired((100 * (found[name][:, jobs].mean(1) / found["oracle"][:, jobs].mean(1) - 1)).tolist())
                for jobs in groups
            ]
            aside = 0.8 * (place - len(DRAWN) // 2)  # so that intervals do not overlap
            middle = [jobs.mean() + 1 + aside for jobs in groups]
            axis.errorbar(
                middle, [each.mean for each in later], yerr=error_bars(later), marker="o", markersize=3, label=name
            )
        axis.set_title(title)
        axis.set_xlabel("job, as they came")
        axis.axhline(0, color="black", linewidth=0.8)
    axes[0].set_ylabel("completion time above the oracle's, %")
    axes[0].legend(fontsize=8, loc="upper left")
    figure.savefig(path, dpi=120)


def run(options: argparse.Namespace) -> Parts:
    """Learn, choose, judge, and give a table without and one with a shift."""
    yield (
        f"{options.seeds} seeds of RL2, {options.decisions:,} decisions each; a load of "
        + (f"{options.load:g}; {options.train} episodes to learn, {options.choose} to choose, {options.judge} to judge")
    )
    family = replace(FAMILY, load=options.load)
    prior = learn_prior(
        [episode(family, SeedSplit.TRAIN, index) for index in range(options.train)],
        on_round=lambda turn, mean: progress(f"learnt prior, round {turn + 1}: {mean:,.0f} s while it explores"),
    )
    truth, tables = true_prior(), dict[str, dict[str, Floats]]()
    with workers(options.processes) as pool:
        learnt = [
            pool.submit(actor, seed, options.decisions, options.work_dir, family) for seed in range(options.seeds)
        ]
        actors = [each.result() for each in learnt]
        for shift in (False, True):
            drawn, judged = (
                [episode(family, split, index, shift=shift) for index in range(count)]
                for split, count in ((SeedSplit.CHOOSE, options.choose), (SeedSplit.JUDGE, options.judge))
            )
            rules: dict[str, Callable[[PlacementEpisode], Placer]] = {
                name: lambda _, p=place: PlacementRule(p) for name, place in RULES.items()
            }
            rules["random"] = lambda one: Random(len(one.arrivals))
            found = {name: seconds(judged, make) for name, make in rules.items()}
            for name, start, until in (
                ("frozen", wide_prior(), until_the_middle),
                ("online", wide_prior(), always),
                ("learnt prior", prior, always),
            ):
                bare = [Setting(memory, optimism) for memory, optimism in itertools.product(MEMORIES, OPTIMISMS)]
                setting = chosen(start, bare, drawn, until)
                progress(f"{name}: {setting}")
                found[name] = seconds(judged, model(start, setting, until))
                if until is not always:
                    continue
                setting = chosen(start, [replace(setting, opening=each) for each in OPENINGS], drawn, until)
                progress(f"{name}{KEPT}: {setting}")
                found[name + KEPT] = seconds(judged, model(start, setting, until))
            found |= reinforced(pool, actors, options.judge, family, shift=shift)
            found["true prior"] = seconds(judged, model(truth, Setting(math.inf, 0.0), always))
            found["slow nodes known"] = seconds(judged, Informed)
            found["oracle"] = seconds(judged, lambda _: Oracle())
            found["oracle" + KEPT] = seconds(judged, lambda _: Oracle(opening=ORACLE_OPENING))
            title = "cluster and workload change in the middle" if shift else "one cluster"
            yield table(found, title)
            tables[title] = found
    if options.picture:
        draw(tables, options.picture)
