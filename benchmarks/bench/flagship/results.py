"""The runs that are done, in a file of JSON lines, so that a benchmark that was stopped continues; and their order."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from bench.flagship.subject import CONTROLS, DECIDED, FIXED, GROWN, RECIPES, Arm, Cell, Run, Subject
from bench.statistics import Paired, paired
from espalier_core.base import Record
from espalier_lab.run_store import RunFile

LADDER: Final = (0.00025, 0.0004, 0.0006, 0.001, 0.0015, 0.002, 0.003, 0.004, 0.006, 0.008, 0.012, 0.016)
"""Learning rates that are tried."""
TRIED_SEED: Final = 100
"""The seed of the runs by which learning rates are chosen; no result counts it."""


class Head(Record):
    """What all runs of a file have in common."""

    job: str
    """How the small net is trained, as JSON."""
    moments: tuple[float, ...]
    base: float
    """Virtual seconds of a step without blocks."""
    block: float
    """And more for each block."""


class Results(RunFile[Cell, Run]):
    """All runs that are done."""

    def __init__(self, head: Head, path: Path | None, rates: Mapping[Arm, float] | None = None) -> None:
        """Read the file; begin it where it is not there. Raises `RunStoreError` where it is of another job.

        `rates` are the learning rates of the fixed nets, where they are known; the best of each other one is looked
        for first.
        """
        super().__init__(path, Run, lambda run: run.cell, head)
        self.head, self._rates = head, rates or {}

    def rate(self, budget: float, arm: Arm) -> float | None:
        """Return the learning rate of an arm: the best of its tries; of an arm that grows, that of the small net.

        None while its tries are not done.
        """
        fixed = Arm.ONE if arm.grows else arm
        if fixed in self._rates:
            return self._rates[fixed]
        tried = self._tried(budget, fixed)
        best = min(tried, key=lambda rate: tried[rate], default=None)
        return best if best is not None and _next_rate(tried, best) is None else None

    def due(self, budget: float, arm: Arm, begin: float) -> Cell | None:
        """Return the next try of a fixed net's learning rate, beginning at `begin`; None when the best is known."""
        if arm in self._rates:
            return None
        tried = self._tried(budget, arm)
        best = min(tried, key=lambda rate: tried[rate], default=None)
        rate = begin if best is None else _next_rate(tried, best)
        return None if rate is None else Cell(budget=budget, arm=arm, moment=None, rate=rate, seed=TRIED_SEED)

    def figures(self, budget: float, arm: Arm, moment: float | None) -> dict[int, float]:
        """Return the figures of an arm by seed."""
        rate = self.rate(budget, arm)
        return {
            run.cell.seed: run.figure
            for run in self
            if (run.cell.budget, run.cell.arm, run.cell.moment, run.cell.rate) == (budget, arm, moment, rate)
            and run.cell.seed != TRIED_SEED
        }

    def gained(self, budget: float, arm: Arm, moment: float | None, other: Arm, its: float | None) -> Paired | None:
        """Return by how much `arm` is better (positive) than `other`, seed by seed; None without two seeds."""
        mine, theirs = self.figures(budget, arm, moment), self.figures(budget, other, its)
        both = sorted(mine.keys() & theirs.keys())
        return paired([theirs[seed] - mine[seed] for seed in both]) if len(both) > 1 else None

    def best_fixed(self, budget: float) -> Arm | None:
        """Return the fixed depth that is best in hindsight, on the same seeds; None while one is not known."""
        found = {arm: self.figures(budget, arm, None) for arm in FIXED}
        seeds = set.intersection(*(set(each) for each in found.values()))
        if not seeds:
            return None
        return min(found, key=lambda arm: sum(found[arm][seed] for seed in seeds))

    def _tried(self, budget: float, arm: Arm) -> dict[float, float]:
        return {
            run.cell.rate: run.validation
            for run in self
            if run.cell.seed == TRIED_SEED and (run.cell.budget, run.cell.arm) == (budget, arm)
        }


def _next_rate(tried: dict[float, float], best: float) -> float | None:
    """Return the next rate to try, next to the best; None where both of its neighbours are known to be worse."""
    place = LADDER.index(best)
    beside = [LADDER[each] for each in (place - 1, place + 1) if 0 <= each < len(LADDER)]
    return next((rate for rate in beside if rate not in tried), None)


def wanted(
    budgets: Sequence[float], moments: Sequence[float], seeds: int
) -> Iterator[tuple[float, Arm, float | None, int]]:
    """Give (budget, arm, moment, seed) in the order in which they are made: whole comparisons first.

    First, for the budgets one after the other, the fixed nets and the growths at the first moment; then the controls;
    then growths at the other moments.
    """
    first = [(arm, None) for arm in FIXED] + [(arm, moments[0]) for arm in GROWN]
    controls = [(arm, moments[0]) for arm in (*RECIPES, *CONTROLS, *DECIDED)]
    later = [(arm, moment) for moment in moments[1:] for arm in GROWN]
    parts: list[tuple[float, list[tuple[Arm, float | None]]]] = [(budget, list(first)) for budget in budgets[:2]]
    parts += [(budget, [*controls, *later]) for budget in budgets[:2]]
    parts += [(budget, [*first, *controls, *later]) for budget in budgets[2:]]
    for budget, cells in parts:
        for seed in range(seeds):
            for arm, moment in cells:
                yield budget, arm, moment, seed


def make(
    results: Results,
    run: Callable[[Cell], Run],
    budgets: Sequence[float],
    seeds: int,
    done: Callable[[Run], None],
    arms: Sequence[Arm],
    first_rate: float,
) -> None:
    """Make all runs of these arms that are missing. The first learning rate that is tried is `first_rate`."""
    begin = dict.fromkeys(FIXED, first_rate)
    for budget, arm, moment, seed in wanted(budgets, results.head.moments, seeds):
        if arm not in arms:
            continue
        for fixed in FIXED if arm in FIXED else (Arm.ONE,):
            while (cell := results.due(budget, fixed, begin[fixed])) is not None:
                _made(results, run, cell, done)
            begin[fixed] = results.rate(budget, fixed) or first_rate
        rate = results.rate(budget, arm)
        if rate is None:
            raise RuntimeError(f"the learning rate of {arm} at {budget:g} s was not chosen")
        _made(results, run, Cell(budget=budget, arm=arm, moment=moment, rate=rate, seed=seed), done)


def _made(results: Results, run: Callable[[Cell], Run], cell: Cell, done: Callable[[Run], None]) -> None:
    if cell not in results:
        results.add(run(cell))
        done(results[cell])


def head_of(subject: Subject, moments: Sequence[float]) -> Head:
    """Return the head of a file of these runs."""
    # Without defaults: a field that comes to jobs later changes no run. Nor does the place of the data.
    training = subject.job.spec.training.model_dump(
        mode="json", by_alias=True, exclude_defaults=True, exclude={"dataset": {"path"}}
    )
    cost = subject.cost
    return Head(job=json.dumps(training), moments=tuple(moments), base=cost.base, block=cost.block)
