"""`judge.png`: the value of each decision, and the regret of the advisors."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Final

import matplotlib as mpl
from matplotlib.figure import Figure

from espalier_cli.picture import BLUE, BROWN, GREEN, GREY
from espalier_lab.growth.judge.verdict import JudgedMoment, JudgeVerdict

mpl.use("Agg")

SHOWN: Final = 40
"""Maximum number of drawn decisions, with the largest differences between arms."""
_COLOURS: Final = {"first": BROWN, "advice": GREEN, "confirm": BLUE}


def draw(verdict: JudgeVerdict, path: Path) -> None:
    """Draw to `path` (PNG): each arm's accuracy relative to doing nothing, and the mean regrets."""
    ordered = sorted(verdict.decisions, key=_spread, reverse=True)[:SHOWN]
    figure = Figure(figsize=(9, 3.2 + 0.22 * len(ordered)), layout="constrained")
    gains, regrets = figure.subplots(2, 1, height_ratios=[1 + 0.22 * len(ordered), 1.6])
    for row, one in enumerate(reversed(ordered)):
        nothing = statistics.fmean(one.advised["none"])
        arms = [statistics.fmean(values) - nothing for values in one.arms.values()]
        gains.plot(arms, [row] * len(arms), "o", color=GREY, ms=4, label="" if row else "an arm")
        for name, colour in _COLOURS.items():
            gains.plot(
                [statistics.fmean(one.advised[name]) - nothing],
                [row],
                marker={"first": "<", "advice": "D", "confirm": "|"}[name],
                color=colour,
                ms=6,
                label="" if row else name,
            )
    gains.axvline(0, color=GREY, lw=0.8)
    gains.set_yticks(range(len(ordered)), [f"{one.case} at {one.share:.0%}" for one in reversed(ordered)], fontsize=7)
    higher = all(measure.higher_is_better for measure in verdict.measures)
    gains.set_xlabel(f"test {verdict.title} {'above' if higher else 'below'} that of the model that does not grow")
    gains.legend(fontsize=8, frameon=False)
    names = list(verdict.regret)
    values = [verdict.regret[name] for name in names]
    ends = [verdict.interval.get(name, (verdict.regret[name],) * 2) for name in names]
    bars = [
        [max(0.0, sign * (end[place] - value)) for end, value in zip(ends, values, strict=True)]
        for place, sign in ((0, -1), (1, 1))
    ]
    regrets.bar(names, values, yerr=bars, color=[GREY, BROWN, GREEN, BLUE, BLUE][: len(names)], capsize=4)
    regrets.set_ylabel("mean regret")
    figure.savefig(path, dpi=110)


def _spread(decision: JudgedMoment) -> float:
    means = [statistics.fmean(values) for values in decision.arms.values()]
    return max(means) - min(means)
