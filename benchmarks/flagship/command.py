"""What the commands of these benchmarks have in common: options, the runs, tables and the picture."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.printed import command, environment, progress

from flagship.arms import DECIDED, FIXED, Arm, Run
from flagship.page import draw, lines, write_page
from flagship.results import TRIED_SEED, Results, head_of, make
from flagship.subject import Subject
from flagship.training import Bench, prepare_process


@dataclass(frozen=True, slots=True)
class Quick:
    """The quick form: a few arms, one learning rate."""

    budget: float
    arms: tuple[Arm, ...]
    seeds: int = 2
    rate: float = 0.004


def parser(description: str | None, budgets: str, moments: str) -> argparse.ArgumentParser:
    """Return a parser of the options that these benchmarks share."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--budgets", default=budgets, help="virtual seconds")
    made.add_argument("--moments", default=moments, help="shares of the budget at which nets grow")
    made.add_argument("--seeds", type=int, default=5)
    made.add_argument(
        "--rates", type=_rates, default={}, help="learning rates of 1, 2 and 4 blocks, so that none is tried"
    )
    made.add_argument("--runs", type=Path, help="file of JSON lines that keeps the runs")
    made.add_argument("--page", type=Path, help="page that holds the tables: those of these budgets are written")
    made.add_argument("--picture", type=Path)
    made.add_argument("--quick", action="store_true", help="a short budget, few seeds and arms, one learning rate")
    made.add_argument("--only-report", action="store_true", help="make no runs: tables of those that are done")
    return made


def carry_out(subject: Subject, options: argparse.Namespace, quick: Quick, decided: Sequence[Arm] = ()) -> None:
    """Make the runs and print the tables. `decided` are arms that decide themselves, which are made too."""
    prepare_process()
    budgets, moments = _numbers(options.budgets), _numbers(options.moments)
    seeds, rates = options.seeds, options.rates
    arms = (*(arm for arm in Arm if arm not in DECIDED and (arm in subject.kept or not arm.is_control)), *decided)
    if options.quick:
        budgets, moments, seeds = (quick.budget,), moments[:1], quick.seeds
        rates, arms = dict.fromkeys(FIXED, quick.rate), (*quick.arms, *decided)
    results = Results(head_of(subject, moments), options.runs, rates)

    def done(run: Run) -> None:
        cell = run.cell
        what = f"rate {cell.rate:g}" if cell.seed == TRIED_SEED else f"seed {cell.seed}"
        when = "" if cell.moment is None else f" at {cell.moment:.0%}"
        answered = f", {' '.join(run.answered) or 'never'}, {run.blocks} blocks" if cell.arm in DECIDED else ""
        figure = f"{run.figure:.3f} {subject.short}"
        progress(f"{cell.budget:g} s, {cell.arm}{when}, {what}: {figure} ({run.seconds:.0f} s){answered}")

    with tempfile.TemporaryDirectory(prefix=f"espalier-{subject.name}-") as temporary:
        trunks = Path(temporary) if options.runs is None else options.runs.with_suffix(".trunks")
        if not options.only_report:
            make(results, Bench(subject, moments, trunks).run, budgets, seeds, done, arms, subject.first_rate)
    for line in lines(subject, results, budgets, whole=not options.quick):
        print(line)
    print(f"\n{environment('torch')}; {command()}")
    if options.picture:
        tables = "\n".join(lines(subject, results, budgets, whole=not options.quick))
        draw(tables, subject.measure, options.picture)
    if options.page:
        write_page(subject, results, budgets, options.page)


def _rates(text: str) -> dict[Arm, float]:
    """Return the learning rates of the fixed nets. Raises `argparse.ArgumentTypeError` for anything else."""
    try:
        rates = _numbers(text)
    except ValueError:
        rates = ()
    if len(rates) != len(FIXED) or min(rates) <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of three learning rates such as 0.003,0.002,0.004")
    return dict(zip(FIXED, rates, strict=True))


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(float(each) for each in text.split(","))
