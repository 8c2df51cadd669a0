"""Can rewriting be learnt? A policy by PPO instead of a search, on nets and on families that it has not met.

*policy*: one for each net and seed, learnt on that net's table of costs. *unseen*: learnt on random members of the
families of the other nets. A policy walks once by its most probable actions, then by drawn ones, up to a tenth of the
evaluations of beam; random, greedy and best-first get as many as the policy. *cost* is the table's, over that of the
cheapest graph of beam; *gain* is the share of beam's gain, log(start ÷ cost). The mean of the seeds has a 95 % interval
(Student's t). *measured*: interleaved pairs of training steps of the plan of beam and of the policy, CPU seconds, the
policy's over beam's. `--work-dir` keeps runs, so that a benchmark that was
stopped continues.

Takes 5 minutes of a core.
"""

from __future__ import annotations

import argparse
import functools
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from bench.command import Option
from bench.printing import Parts, Table, progress
from bench.rewritten.nets import Case, Sizes, case_of
from bench.statistics import interval
from espalier_core.base import Record
from espalier_lab.rewriting.engine import OperatorCosts, SearchResult
from espalier_lab.rewriting.engine.search import SEARCHES, at_random
from espalier_lab.rewriting.learned import RewriteLearnerSettings, learn, walks
from espalier_lab.rewriting.learned.environment import RewritesEnvironment
from espalier_lab.rewriting.learned.families import FAMILIES, member
from espalier_lab.run_store import RunFile

NETS: Final = ("handwritten", "repvgg-like", "squeezenet", "resnet50", "inception")
TABLE: Final = Option(None, "folder of the table of costs, for several benchmarks (default: --work-dir)", type=Path)
HOWS: Final = ("policy", "unseen")
OPTIONS: Final = {
    "nets": Option(list(NETS), choices=tuple(FAMILIES)),
    "seeds": Option(3),
    "how": Option(list(HOWS), "learnt on the nets themselves, on the families of the others", HOWS),
    "updates": Option(16),
    "pairs": Option(15),
    "table": TABLE,
}
QUICK: Final = {"nets": list(NETS[1:2]), "seeds": 1, "how": ["policy"], "updates": 4}
BEAM: Final = 1500
"""Most graphs that beam may cost."""
MEMBERS: Final = 4
"""Of each family that is learnt on."""
DRAWS: Final = 20
"""Seeds of random walks."""
FILLED: Final = 40
"""Graphs of random walks of each member, which fill the table of costs before learning begins."""


class Run(Record):
    """What one way found on one net: costs over that of the cheapest graph of beam."""

    net: str
    how: str
    seed: int
    evaluations: int
    cost: float
    gain: float
    learnt_from: int = 0
    """Graphs costed while learning."""
    seconds: float = 0.0
    """Of CPU, for learning."""
    measured: float = 0.0
    """Step of the plan over that of beam's; 0: not measured."""
    quartiles: tuple[float, float] = (0.0, 0.0)


class Reference:
    """A net, its environment, and what beam finds."""

    def __init__(self, name: str, options: argparse.Namespace) -> None:
        self.case: Case = case_of(name, Sizes(options.pairs, 0, BEAM), options.table)
        self.costs = self.case.costs
        self.world = RewritesEnvironment((self.case.module, self.case.inputs), self.costs)
        self.beam = SEARCHES["beam"](self.case.graph, self.costs, evaluations=BEAM)
        self.costs.save()
        self.tenth = max(1, self.beam.evaluations // 10)

    def run(self, how: str, seed: int, found: SearchResult, **more: float) -> Run:
        """Return what was found, compared with beam."""
        best = self.beam.best[0][0]
        cost = found.best[0][0]
        gain = math.log(found.start / cost) / math.log(found.start / best) if best < found.start else 1.0
        return Run(
            net=self.case.name, how=how, seed=seed, evaluations=found.evaluations, cost=cost / best, gain=gain, **more
        )  # type: ignore[arg-type]

    def baselines(self, evaluations: int) -> list[Run]:
        """Return what searches find with as many evaluations."""
        graph, costs = self.case.graph, self.costs
        runs = [
            self.run(name, 0, SEARCHES[name](graph, costs, evaluations=evaluations))
            for name in ("greedy", "best-first", "beam")
        ]
        draws = [self.run("random", seed, at_random(graph, costs, evaluations=evaluations, seed=seed))
                 for seed in range(DRAWS)]  # fmt: skip
        return [*draws, *runs]

    def measured(self, found: SearchResult, pairs: int) -> tuple[float, tuple[float, float]]:
        """Return the step of a plan over that of beam's, with quartiles; 1 where the plan is beam's."""
        if found.plan.rules == self.beam.plan.rules:
            return 1.0, (1.0, 1.0)
        (first, _), (second, _) = (self.case.executed(one.plan) for one in (self.beam, found))
        step = self.case.compared(second, self.case.trained(), pairs, than=first)
        low, high = step.quartiles
        return 1 / step.gain, (1 / high, 1 / low)


def run(options: argparse.Namespace) -> Parts:
    """Learn, judge, and give the table."""
    options.table = options.table or options.work_dir
    kept = RunFile(options.work_dir / "runs.jsonl", Run, lambda run: (run.net, run.how, run.seed))
    done = list(kept)
    for name in options.nets:
        reference = Reference(name, options)
        cut = " (cut off)" if reference.beam.evaluations >= BEAM else ""
        start, best = 1e3 * reference.beam.start, 1e3 * reference.beam.best[0][0]
        progress(f"{name}: beam costs {reference.beam.evaluations} graphs{cut}, {start:.2f} -> {best:.2f} ms")
        for how in options.how:
            for seed in range(options.seeds):
                if (name, how, seed) not in kept:
                    done.append(learnt(reference, how, seed, options))
                    kept.add(done[-1])
                    progress(f"  {how}, seed {seed}: {done[-1]}")
        done += reference.baselines(reference.tenth)
        done.append(reference.run("beam, whole", 0, reference.beam))
    head = ["net, how", "seeds", "graphs costed", "cost", "worst", "gain", "measured", "quartiles"]
    head += ["learnt from", "CPU s"]
    shown = [one for one in done if one.net in options.nets]
    yield Table("Beside the cheapest graph that beam finds", head, rows(shown))


def learnt(reference: Reference, how: str, seed: int, options: argparse.Namespace) -> Run:
    """Learn a policy, and use it on the net."""
    name = reference.case.name
    families = {name: [reference.world]} if how == "policy" else others(name, options.table)
    began, costed = time.process_time(), 0

    def on_update(updates: int, decisions: int, returns: Mapping[str, float]) -> None:
        nonlocal costed
        costed = decisions
        if updates % 4 == 0:
            gains = ", ".join(f"{family} {gain:.3f}" for family, gain in returns.items())
            progress(f"    update {updates}: {gains} ({time.process_time() - began:.0f} s of CPU)")

    policy = learn(families, RewriteLearnerSettings(updates=options.updates), seed, on_update)
    seconds = time.process_time() - began
    found = walks(reference.world, policy, evaluations=reference.tenth, seed=seed)
    measured, quartiles = reference.measured(found, options.pairs)
    return reference.run(how, seed, found, learnt_from=costed, seconds=seconds, measured=measured, quartiles=quartiles)


def others(name: str, table: Path) -> dict[str, list[RewritesEnvironment]]:
    """Return members of the families other than that of a net."""
    return {family: members_of(family, table) for family in FAMILIES if family != name}


@functools.cache
def members_of(family: str, table: Path) -> list[RewritesEnvironment]:
    found = []
    for number in range(MEMBERS):
        module, inputs = member(family, number)
        costs = OperatorCosts(module, table, clock=time.process_time)
        world = RewritesEnvironment((module, inputs), costs)
        # Fills the table with what walks meet most.
        at_random(world.start.graph, costs, evaluations=FILLED)
        costs.save()
        found.append(world)
    return found


def rows(done: Sequence[Run]) -> list[list[str]]:
    """Return a row for each net and way."""
    found: dict[tuple[str, str], list[Run]] = {}
    for one in done:
        found.setdefault((one.net, one.how), []).append(one)
    cells = []
    for (net, how), runs in found.items():
        costs, gains = [one.cost for one in runs], [one.gain for one in runs]
        taken = [one.measured for one in runs if one.measured]
        low, high = zip(*(one.quartiles for one in runs), strict=True)
        cells.append([
            f"{net}, {how}", f"{len(runs)}", f"{max(one.evaluations for one in runs)}", interval(costs),
            f"{max(costs):.3f}", interval(gains),
            interval(taken) if taken else "-", f"{min(low):.2f}–{max(high):.2f}" if taken else "-",
            f"{statistics.fmean(one.learnt_from for one in runs):,.0f}" if taken else "-",
            f"{statistics.fmean(one.seconds for one in runs):.0f}" if taken else "-",
        ])  # fmt: skip
    return cells
