"""Tables, the picture, and the page in the book that holds the tables."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from harness.statistics import Paired, mean_and_deviation
from matplotlib.figure import Figure

from flagship.arms import DECIDED, FIXED, GROWN, Arm
from flagship.results import Results
from flagship.subject import Subject

BEGIN, END = "<!-- BEGIN figures (benchmarks/{}.py) -->", "<!-- END figures -->"
COLORS: Final = {
    Arm.ONE: "#757575",
    Arm.TWO: "#1565c0",
    Arm.FOUR: "#8d4b1f",
    Arm.UNFOLDED: "#1b5e20",
    Arm.SCALED: "#66bb6a",
    Arm.EXACT: "#aed581",
    Arm.INITIALISED: "#ad1457",
    Arm.EMBEDDINGS: "#f48fb1",
}
MISSING: Final = "not run"
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
                f"{arm}{'' if moment is None else f' at {moment:.0%}'}{' (best fixed)' if arm is best else ''}",
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


def draw(subject: Subject, results: Results, budgets: Sequence[float], path: Path) -> None:
    """Draw, for each budget, the figures of each arm: every seed a dot, and the mean."""
    shown = [budget for budget in budgets if results.best_fixed(budget) is not None]
    if not shown:
        raise ValueError("no budget has runs of all fixed depths yet, so there is nothing to draw")
    figure = Figure(figsize=(3.1 * len(shown) + 2.4, 3.9), layout="constrained")
    every = figure.subplots(1, len(shown), squeeze=False)[0]
    arms: list[tuple[Arm, float | None]] = [*((arm, None) for arm in FIXED)]
    arms += [(arm, results.head.moments[0]) for arm in reversed(GROWN)]
    for axes, budget in zip(every, shown, strict=True):
        for place, (arm, moment) in enumerate(arms):
            figures = list(results.figures(budget, arm, moment).values())
            if not figures:
                continue
            mean = statistics.fmean(figures)
            axes.plot([place] * len(figures), figures, "o", color=COLORS[arm], alpha=0.35, ms=4)
            axes.plot([place - 0.25, place + 0.25], [mean, mean], color=COLORS[arm], lw=2.5)
            axes.annotate(
                f"{mean:.3f}", (place, mean), xytext=(0, 8), textcoords="offset points", ha="center", fontsize=8
            )
        best = results.best_fixed(budget)
        gain = None if best is None else results.gained(budget, Arm.UNFOLDED, results.head.moments[0], best, None)
        axes.set_title(f"budget {budget:g} s" + _told(gain, best), fontsize=9)
        axes.set_xticks(range(len(arms)), [_short(arm) for arm, _ in arms], fontsize=8)
        axes.set_xlim(-0.6, len(arms) - 0.4)
        axes.grid(axis="y", alpha=0.25)
    every[0].set_ylabel(f"{subject.measure} on the test split\n(lower is better)")
    figure.savefig(path, dpi=120)


def _told(gain: Paired | None, best: Arm | None) -> str:
    if gain is None or best is None:
        return ""
    than = "better" if gain.mean >= 0 else "worse"
    low, high = sorted((gain.low, gain.high) if gain.mean >= 0 else (-gain.low, -gain.high))
    return f"\ngrown (unfolded) {than} than {best} by\n{abs(gain.mean):.3f} ({low:.3f} to {high:.3f})"


def _short(arm: Arm) -> str:
    if arm in GROWN:
        return "1 → 4\n" + arm.value.split(", ")[1].removesuffix(" copies")
    return arm.value.replace(" ", "\n")


def write_page(subject: Subject, results: Results, budgets: Sequence[float], path: Path) -> None:
    """Write the tables of these budgets into a page, between its marks; those of other budgets stay.

    Raises `ValueError` where the page has no marks.
    """
    text, begin = path.read_text(encoding="utf-8"), BEGIN.format(subject.name)
    before, found, rest = text.partition(begin)
    kept, ended, after = rest.partition(END)
    if not (found and ended):
        raise ValueError(f"{path} has no lines {begin!r} and {END!r} between which the tables go")
    tables = {float(each.split()[0]): _HEADING + each for each in kept.split(_HEADING)[1:]}
    tables |= {budget: "\n".join(lines(subject, results, (budget,))) for budget in budgets}
    written = "\n\n".join(tables[budget].strip() for budget in sorted(tables))
    path.write_text(f"{before}{begin}\n\n{written}\n\n{END}{after}", encoding="utf-8")
