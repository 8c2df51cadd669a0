"""Can rewriting be learnt in a dream? Controllers of a world model, PPO with as many steps, and searches.

*PPO* learns in the real environment, for `--updates` of 24 episodes. A world model is learnt from random episodes with
as many steps (at most one episode more). *dream τ* learns `--dreamt` updates in the dream of that world at temperature
τ, without any further step. *awake* is the same controller, which learns by the same z_t and h in the real environment:
what the dream costs is between the two. All figures are by the table of costs, as shares of beam's gain, log(start ÷
cost). *walk*: the mean of 16 drawn walks in the real environment. *promised*: the same in the dream. *best of a tenth*:
the cheapest graph of walks that cost a tenth of beam's graphs. Means over seeds have a 95 % interval (Student's t).
The second table foretells random episodes that were not learnt from, each step from the real graph (*seen*) or from
what was foretold before (*dreamt*): *rewards*, the share of their variance; *masks*, steps after which all of them are
right; *offered*, of the rewrites that are foretold or hold, those that are both; *ends*, steps. Nets on which beam
gains nothing (gpt) are left out: there is nothing to learn.

Takes 15 minutes of a core.
"""

from __future__ import annotations

import argparse
import copy
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import gymnasium
import torch

from bench.cases.rewrites_learned import DRAWS, NETS, TABLE, Reference
from bench.command import Option
from bench.printing import Parts, Table, progress
from bench.statistics import interval
from espalier_lab.rewriting.engine import SearchResult
from espalier_lab.rewriting.engine.search import SEARCHES, at_random
from espalier_lab.rewriting.learned import RewriteLearnerSettings, learn, walks
from espalier_lab.rewriting.learned.dreaming import (
    Awake,
    Dream,
    Judged,
    Uniform,
    WorldSettings,
    judged,
    learn_controller,
    learn_world,
    record,
)
from espalier_lab.rewriting.learned.environment import Action
from espalier_lab.rewriting.learned.learnable import LearnablePolicy
from espalier_lab.rewriting.learned.rollout import play

OPTIONS: Final = {
    "nets": Option(list(NETS)),
    "seeds": Option(3),
    "updates": Option(4, "of PPO in the real environment"),
    "dreamt": Option(25, "updates in a dream"),
    "temperatures": Option([0.5, 1.0, 1.5]),
    "seeing": Option(WorldSettings().seeing, "epochs in which a world learns to see"),
    "remembering": Option(WorldSettings().remembering, "epochs in which a world learns to remember"),
    "pairs": Option(0, "of steps, with which nothing is measured here"),
    "table": TABLE,
}
QUICK: Final = {
    **{"nets": list(NETS[1:2]), "seeds": 1, "updates": 1, "dreamt": 2, "temperatures": [1.0]},
    **{"seeing": 2, "remembering": 4},
}
WALKS: Final = 16
"""Drawn walks that a policy is judged by."""
HELD_OUT: Final = 500
"""Steps of episodes that a world model is judged by."""


@dataclass(frozen=True, slots=True)
class Run:
    """What one way found on one net with one seed: shares of beam's gain."""

    net: str
    how: str
    steps: int
    """Of the real environment, for learning."""
    walk: float
    tenth: float
    promised: float = math.nan
    seconds: float = 0.0
    """Of CPU, for learning."""


@dataclass(frozen=True, slots=True)
class Foreseen:
    """How far the world model of a net and a seed foretells."""

    net: str
    how: str
    judged: Judged


class Bench:
    """A net and all ways to rewrite it."""

    def __init__(self, name: str, options: argparse.Namespace) -> None:
        self.reference = Reference(name, options)
        self.name, self.world, self.options = name, self.reference.world, options
        beam = self.reference.beam
        self.whole = math.log(beam.start / beam.best[0][0])
        self.runs: list[Run] = []
        self.foreseen: list[Foreseen] = []

    def share(self, gain: float) -> float:
        """Return a gain as a share of beam's."""
        return gain / self.whole

    def found(self, found: SearchResult) -> float:
        return self.share(math.log(found.start / found.best[0][0]))

    def walked(
        self, world: gymnasium.Env[Any, Action], policy: LearnablePolicy[Any], seed: int, walks: int = WALKS
    ) -> float:
        """Return the mean of drawn walks."""
        generator = torch.Generator().manual_seed(seed)
        episodes = play([copy.copy(world) for _ in range(walks)], policy, generator)
        return self.share(statistics.fmean(sum(one.rewards) for one in episodes))

    def judge(
        self, how: str, world: gymnasium.Env[Any, Action], policy: LearnablePolicy[Any], seed: int, steps: int, seconds:
        float, dream: Dream | None = None,
    ) -> None:  # fmt: skip
        """Judge in the real environment what was learnt with some steps of it, and in the dream what it promised."""
        tenth = self.found(walks(world, policy, evaluations=self.reference.tenth, seed=seed))
        promised = math.nan if dream is None else self.walked(dream, policy, seed)
        run = Run(self.name, how, steps, self.walked(world, policy, seed), tenth, promised, seconds)
        progress(f"  seed {seed}: {run}")
        self.runs.append(run)

    def searched(self) -> None:
        graph, costs, tenth = self.reference.case.graph, self.reference.costs, self.reference.tenth
        uniform = Uniform(stopping=0)
        for seed in range(DRAWS):
            found = at_random(graph, costs, evaluations=tenth, seed=seed)
            self.runs.append(Run(self.name, "random", 0, self.walked(self.world, uniform, seed, 2), self.found(found)))
        greedy = [self.found(SEARCHES["greedy"](graph, costs, evaluations=most)) for most in (10_000, tenth)]
        self.runs.append(Run(self.name, "greedy", 0, *greedy))
        self.runs.append(
            Run(self.name, "beam 8", 0, 1.0, self.found(SEARCHES["beam"](graph, costs, evaluations=tenth)))
        )

    def run(self, seed: int) -> None:
        """Learn in the real environment and in dreams."""
        options, steps = self.options, 0
        settings = WorldSettings(seeing=options.seeing, remembering=options.remembering)

        def on_update(updates: int, decisions: int, returns: Mapping[str, float]) -> None:
            nonlocal steps
            steps = decisions

        real = RewriteLearnerSettings(updates=options.updates)
        began = time.process_time()
        policy = learn({self.name: [self.world]}, real, seed, on_update)
        self.judge("PPO", self.world, policy, seed, steps, time.process_time() - began)
        began = time.process_time()
        episodes = record(self.world, steps, seed)
        recorded = sum(len(one.actions) for one in episodes)
        world = learn_world(episodes, settings, seed)
        seconds = time.process_time() - began
        fresh = record(self.world, HELD_OUT, 1000 + seed)
        for how, dreaming in (("seen", False), ("dreamt", True)):
            one = Foreseen(self.name, how, judged(world, fresh, dreaming=dreaming))
            progress(f"  seed {seed}, {recorded} steps, {seconds:.0f} s: {one}")
            self.foreseen.append(one)
        awake = Awake(self.world, world)
        began = time.process_time()
        controller = learn_controller(awake, real, seed, on_update)
        self.judge("awake", awake, controller, seed, recorded + steps, seconds + time.process_time() - began)
        for temperature in options.temperatures:
            dream = Dream(world, episodes[0].seen[0], temperature=temperature, horizon=self.world.horizon)
            began = time.process_time()
            controller = learn_controller(dream, RewriteLearnerSettings(updates=options.dreamt), seed)
            cost = seconds + time.process_time() - began
            self.judge(f"dream {temperature:g}", awake, controller, seed, recorded, cost, dream)


def run(options: argparse.Namespace) -> Parts:
    """Learn, judge, and give the tables."""
    options.table = options.table or options.work_dir
    benches = [bench for name in options.nets if (bench := Bench(name, options)).whole > 0]
    for bench in benches:
        beam = bench.reference.beam
        progress(f"{bench.name}: beam costs {beam.evaluations} graphs, gain {math.exp(bench.whole):.3f}")
        bench.searched()
    # Seed by seed, so that a benchmark that is stopped has results of all nets.
    for seed in range(options.seeds):
        for bench in benches:
            bench.run(seed)
    head = ["net, how", "seeds", "real steps", "promised", "walk", "worst", "best of a tenth", "worst", "CPU s"]
    yield Table("Shares of beam's gain", head, rows([one for bench in benches for one in bench.runs]))
    head = ["net, how", "seeds", "rewards R²", "masks", "offered", "ends"]
    foreseen = [one for bench in benches for one in bench.foreseen]
    yield Table("What the world models foretell", head, foretold(foreseen))


def rows(runs: Sequence[Run]) -> list[list[str]]:
    """Return a row for each net and way."""
    return [
        [f"{net}, {how}", f"{len(found)}", f"{statistics.fmean(one.steps for one in found):,.0f}",
         "-" if math.isnan(found[0].promised) else interval([one.promised for one in found]),
         interval([one.walk for one in found]), f"{min(one.walk for one in found):.3f}",
         interval([one.tenth for one in found]), f"{min(one.tenth for one in found):.3f}",
         f"{statistics.fmean(one.seconds for one in found):.0f}"]
        for (net, how), found in grouped(runs).items()
    ]  # fmt: skip


def foretold(foreseen: Sequence[Foreseen]) -> list[list[str]]:
    """Return a row for each net, seen and dreamt."""
    return [
        [f"{net}, {how}", f"{len(found)}",
         *(interval([getattr(one.judged, name) for one in found]) for name in ("rewards", "masks", "offered", "ends"))]
        for (net, how), found in grouped(foreseen).items()
    ]  # fmt: skip


def grouped(found: Sequence[Any]) -> dict[tuple[str, str], list[Any]]:
    groups: dict[tuple[str, str], list[Any]] = {}
    for one in found:
        groups.setdefault((one.net, one.how), []).append(one)
    return groups
