"""Tables, the picture, and the page in the book that holds the tables."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from matplotlib.figure import Figure

from bench.flagship.results import Results
from bench.flagship.subject import DECIDED, FIXED, GROWN, Arm, Subject
from bench.statistics import mean_and_deviation

BEGIN, END = "<!-- BEGIN figures (make bench-{}) -->", "<!-- END figures -->"
COLORS: Final = {
    Arm.ONE.value: "#757575",
    Arm.TWO.value: "#1565c0",
    Arm.FOUR.value: "#8d4b1f",
    Arm.UNFOLDED.value: "#1b5e20",
    Arm.SCALED.value: "#66bb6a",
    Arm.EXACT.value: "#aed581",
}
"""Of the arms that the picture shows."""
MISSING: Final = "not run"
_BEST: Final = " (best fixed)"
_HEADING: Final = "**Budget "


def lines(subject: Subject, results: Results, budgets: Sequence[float], *, whole: bool = True) -> Iterator[str]:
    """Give the tables in Markdown: figures, then differences; what was not run says so, if `whole`."""
    for budget in budgets:
        best = results.best_fixed(budget)
        yield f"{_HEADING}{budget:g} virtual seconds**"
        yield ""
        others = " | ".join(f"over {arm}" for arm in FIXED)
        yield f"| arm | learning rate | seeds | {subject.measure} | gained {others} |"
        yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"
        for arm, moment in rows(subject, results):
            figures = list(results.figures(budget, arm, moment).values())
            if not whole and not figures:
                continue
            rate = results.rate(budget, arm)
            cells = [
                f"{arm}{'' if moment is None else f' at {moment:.0%}'}{_BEST if arm is best else ''}",
                MISSING if rate is None else f"{rate:g}",
                str(len(figures)),
                mean_and_deviation(figures) if figures else MISSING,
                *(_gain(results, budget, arm, moment, other) for other in FIXED),
            ]
            yield f"| {' | '.join(cells)} |"
        yield ""


def rows(subject: Subject, results: Results) -> list[tuple[Arm, float | None]]:
    """Return the arms with their moments, in the order of the tables."""
    moments = results.head.moments
    grown = [(arm, moment) for arm in GROWN for moment in moments]
    decided = [(arm, moments[0]) for arm in DECIDED if any(run.cell.arm is arm for run in results)]
    return [*((arm, None) for arm in FIXED), *grown, *((arm, moments[0]) for arm in subject.kept), *decided]


def _gain(results: Results, budget: float, arm: Arm, moment: float | None, other: Arm) -> str:
    if arm is other:
        return ""
    found = results.gained(budget, arm, moment, other, None)
    return MISSING if found is None else found.cell


def draw(tables: str, measure: str, path: Path) -> None:
    """Draw how much better each arm of `tables` (as `lines` or a page has them) ends than the best fixed depth.

    One panel: the gain by budget with its 95 % interval; of the growths, those at the first moment. Draws nothing
    where no budget has a best fixed depth yet.
    """
    gains: dict[str, dict[float, tuple[float, float, float]]] = {}
    budgets = []
    for table in tables.split(_HEADING)[1:]:
        rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in table.splitlines() if row.startswith("|")]
        best = next((row[0].removesuffix(_BEST) for row in rows if row[0].endswith(_BEST)), None)
        if best is None:
            continue
        budgets.append(float(table.split()[0]))
        column = next(place for place, name in enumerate(rows[0]) if name.endswith(f"over {best}"))
        for row in rows[2:]:
            found = [float(number) for number in re.findall(r"[-+][0-9.]+", row[column])]
            if len(found) == 3:
                gains.setdefault(row[0].removesuffix(_BEST), {})[budgets[-1]] = (found[0], found[1], found[2])
    if not budgets:
        return
    first = min((name.rpartition(" at ")[2] for name in gains if " at " in name), key=_percent, default="")
    shown = {name: by for name, by in gains.items() if name in COLORS or name.endswith(f" at {first}")}
    shown = {name: by for name, by in shown.items() if name.partition(" at ")[0] in COLORS}
    figure = Figure(figsize=(7.6, 4.6), layout="constrained")
    axes = figure.subplots()
    axes.axhline(0, color="#000000", lw=1, label="the best fixed depth, known in hindsight")
    for place, (name, by) in enumerate(shown.items()):
        apart = (place - (len(shown) - 1) / 2) * 0.07
        xs = [budgets.index(budget) + apart for budget in by]
        means = [mean for mean, _, _ in by.values()]
        errors = [[mean - low for mean, low, _ in by.values()], [high - mean for mean, _, high in by.values()]]
        colour = COLORS[name.partition(" at ")[0]]
        axes.errorbar(xs, means, yerr=errors, fmt="o", ms=5, capsize=3, color=colour, label=name)
    axes.set_xticks(range(len(budgets)), [f"{budget:g} s" for budget in budgets])
    axes.set_xlabel("time budget")
    axes.set_ylabel(f"{measure} gained over\nthe best fixed depth")
    axes.grid(axis="y", alpha=0.25)
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=8)
    figure.savefig(path, dpi=120)


def _percent(moment: str) -> float:
    return float(moment.removesuffix("%"))


def write_page(subject: Subject, results: Results, budgets: Sequence[float], path: Path) -> None:
    """Write the tables of these budgets into a page, between its marks; those of other budgets stay.

    Raises `ValueError` where the page has no marks.
    """
    text, begin = path.read_text(encoding="utf-8"), BEGIN.format(subject.name.replace("_", "-"))
    before, found, rest = text.partition(begin)
    kept, ended, after = rest.partition(END)
    if not (found and ended):
        raise ValueError(f"{path} has no lines {begin!r} and {END!r} between which the tables go")
    tables = {float(each.split()[0]): _HEADING + each for each in kept.split(_HEADING)[1:]}
    tables |= {budget: "\n".join(lines(subject, results, (budget,))) for budget in budgets}
    written = "\n\n".join(tables[budget].strip() for budget in sorted(tables))
    path.write_text(f"{before}{begin}\n\n{written}\n\n{END}{after}", encoding="utf-8")
