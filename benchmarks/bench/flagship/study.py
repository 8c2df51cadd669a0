"""What the benchmarks of models that grow by blocks have in common: options, the runs, tables and the picture."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from bench.command import PICTURE, BenchError, Option
from bench.flagship import recipes
from bench.flagship.page import draw, lines, write_page
from bench.flagship.results import TRIED_SEED, Results, head_of, make
from bench.flagship.subject import DECIDED, FIXED, RECIPES, Arm, Run, Subject
from bench.flagship.training import Bench
from bench.printing import Parts, progress


def options(budgets: list[float], moments: list[float], seeds: int = 5) -> dict[str, Option]:
    """Return the options that these benchmarks share."""
    return {
        "budgets": Option(budgets, "virtual seconds"),
        "moments": Option(moments, "shares of the budget at which nets grow"),
        "seeds": Option(seeds),
        "rates": Option([], "learning rates of 1, 2 and 4 blocks, so that none is tried", type=float),
        "arms": Option([], "only these", tuple(Arm), type=Arm),
        "page": Option(None, "page that holds the tables: those of these budgets are written", type=Path),
        "only_report": Option(False, "make no runs: tables of those that are done"),
        "picture": PICTURE,
    }


def runs_file(options: argparse.Namespace) -> Path:
    """Return the file that keeps the runs."""
    file: Path = options.work_dir / "runs.jsonl"
    return file


def carried_out(subject: Subject, options: argparse.Namespace, more: Sequence[Arm] = ()) -> Parts:
    """Make the runs, and give the tables. `more` are arms that are made too."""
    if options.rates and (len(options.rates) != len(FIXED) or min(options.rates) <= 0):
        raise BenchError(f"--rates: {options.rates} is no list of three learning rates such as 0.003 0.002 0.004")
    rates, moments = dict(zip(FIXED, options.rates, strict=False)), tuple(options.moments)
    chosen = [arm for arm in Arm if arm not in (*DECIDED, *RECIPES) and (arm in subject.kept or not arm.is_control)]
    arms = (*(options.arms or chosen), *more)
    results = Results(head_of(subject, moments), runs_file(options), rates)

    def done(run: Run) -> None:
        cell = run.cell
        what = f"rate {cell.rate:g}" if cell.seed == TRIED_SEED else f"seed {cell.seed}"
        when = "" if cell.moment is None else f" at {cell.moment:.0%}"
        answered = f", {' '.join(run.answered) or 'never'}, {run.blocks} blocks" if cell.arm in DECIDED else ""
        figure = f"{run.figure:.3f} {subject.short}"
        progress(f"{cell.budget:g} s, {cell.arm}{when}, {what}: {figure} ({run.seconds:.0f} s){answered}")

    if not options.only_report:
        bench = Bench(subject, moments, options.work_dir / "trunks", recipes.MADE)
        make(results, bench.run, options.budgets, options.seeds, done, arms, subject.first_rate)
    tables = "\n".join(lines(subject, results, options.budgets, whole=not options.arms))
    yield tables
    if any(run.cell.arm in RECIPES for run in results):
        yield "\n".join(recipes.lines(results, options.budgets))
    yield {"runs": [run.model_dump(mode="json") for run in results]}
    if options.picture:
        draw(tables, subject.measure, options.picture)
    if options.page:
        write_page(subject, results, options.budgets, options.page)
