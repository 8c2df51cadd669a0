"""Does a learnt residual of the table of costs save measurements? Plans of members of three families.

For each net, the cheapest `--candidates` of the different graphs of random walks are all measured twice, in interleaved
pairs of training steps (CPU seconds): by one half plans are chosen, by the other half they are judged. *all* measures
every candidate. The others measure a third of them: *table* the cheapest by the table, *random* any, *residual* what
`espalier_lab.rewriting.learned.residual` chooses with the plans of other nets (of other families, *unseen*), *alone*
without any. The model stays as it is where no plan gains. *loss*: log of the gain of the plan of *all* over that of the
chosen one, both judged, as a percentage, the mean over nets and seeds with a 95 % interval over nets (Student's t).
*equal*: nets where it is at most 1 %.

Measurements and the table of costs are kept in --work-dir. Takes a minute of a core.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from bench.command import Option
from bench.printing import Parts, Table, progress
from bench.rewritten.nets import Case, Sizes, walked
from espalier_lab.intervals import half_width
from espalier_lab.rewriting.engine import OperatorCosts, capture
from espalier_lab.rewriting.engine.emitting import emitted
from espalier_lab.rewriting.engine.search import SearchState
from espalier_lab.rewriting.learned.families import member
from espalier_lab.rewriting.learned.residual import MeasuredPlans, choose

FAMILIES: Final = ("handwritten", "repvgg-like", "inception")
"""Those in which there is something to choose."""
OPTIONS: Final = {"members": Option(3), "candidates": Option(12), "pairs": Option(5), "seeds": Option(5)}
QUICK: Final = {"members": 1, "candidates": 6, "pairs": 2}
WALKED: Final = 60
"""Different graphs of a net, of which the cheapest are candidates."""
EQUAL: Final = 0.01


@dataclass(frozen=True, slots=True)
class Subject:
    """A net, its candidates, and two measurements of the gain of each."""

    family: str
    number: int
    start: SearchState
    candidates: list[SearchState]
    chosen_by: list[float]
    judged_by: list[float]

    def loss(self, places: Collection[int]) -> float:
        """Return how much is lost by measuring these candidates alone, compared with measuring all of them."""
        return math.log(self._gain(range(len(self.candidates))) / self._gain(places))

    def _gain(self, places: Collection[int]) -> float:
        """Return the gain of the best of some candidates, judged again; the model stays as it is where none gains."""
        best = max(places, key=self.chosen_by.__getitem__)
        return self.judged_by[best] if self.chosen_by[best] > 1 else 1.0

    def known(self) -> MeasuredPlans:
        """Return the plans of this net, for others."""
        found = MeasuredPlans()
        for state, gain in zip(self.candidates, self.chosen_by, strict=True):
            found.add(self.start, state, gain)
        return found


def run(options: argparse.Namespace) -> Parts:
    """Measure, choose, and give the table."""
    subjects = [measured(family, number, options) for family in FAMILIES for number in range(options.members)]
    known = {(one.family, one.number): one.known() for one in subjects}
    rows = []
    for how in ("all", "table", "random", "alone", "residual", "unseen"):
        lost, spent = [], 0
        for subject in subjects:
            third = max(1, len(subject.candidates) // 3)
            found = [chosen(subject, how, third, known, seed) for seed in range(options.seeds)]
            lost.append(statistics.fmean(map(subject.loss, found)))
            spent += len(found[0])
        loss = f"{100 * statistics.fmean(lost):.2f} ± {100 * half_width(lost):.2f}"
        equal = f"{sum(one <= EQUAL for one in lost)} of {len(lost)}"
        rows.append([how, f"{len(subjects)}", f"{spent}", loss, f"{100 * max(lost):.1f}", equal])
    head = ["how", "nets", "measurements", "loss %", "worst %", "equal"]
    yield Table("Choosing a plan by few measurements", head, rows)


def measured(family: str, number: int, options: argparse.Namespace) -> Subject:
    """Measure all candidates of a net, or read what was measured."""
    module, inputs = member(family, number)
    costs = OperatorCosts(module, options.work_dir, clock=time.process_time)
    case = Case(family, module, inputs, capture(module, inputs), costs, Sizes(options.pairs, WALKED, 0))
    start, *others = walked(case)
    candidates = sorted(others, key=lambda state: state.cost)[: options.candidates]
    costs.save()
    kept = options.work_dir / f"{family}-{number}-{options.candidates}-{options.pairs}.json"
    if kept.exists():
        halves = json.loads(kept.read_text())
    else:
        step = case.trained()
        halves = [[0.0] * len(candidates), [0.0] * len(candidates)]
        # In another order the second time: what slows the machine for a while then slows other candidates.
        for half, gains in enumerate(halves):
            order = random.Random(half).sample(range(len(candidates)), len(candidates))
            for place in order:
                execution = emitted(candidates[place].graph, module)
                gains[place] = case.compared(execution, step, options.pairs).gain
        kept.write_text(json.dumps(halves))
    best = ", ".join(f"{max(gains):.3f}" for gains in halves)
    table = start.cost / candidates[0].cost
    progress(f"{family} {number}: {len(candidates)} candidates, by the table {table:.3f}, measured {best}")
    return Subject(family, number, start, candidates, *halves)


def chosen(
    subject: Subject, how: str, third: int, known: dict[tuple[str, int], MeasuredPlans], seed: int
) -> Collection[int]:
    """Return the places of the candidates that are measured."""
    places = range(len(subject.candidates))
    if how in ("all", "table", "random"):
        return {"all": places, "table": places[:third], "random": random.Random(seed).sample(places, third)}[how]
    others = MeasuredPlans()
    for (family, number), one in known.items():
        met = family != subject.family if how == "unseen" else (family, number) != (subject.family, subject.number)
        if how != "alone" and met:
            others = others.with_more(one)
    choice = choose(
        subject.start,
        subject.candidates,
        lambda state: subject.chosen_by[next(n for n in places if subject.candidates[n] is state)],
        measurements=third,
        others=others,
        seed=seed,
    )
    return choice.gains.keys()
