"""Means, paired differences, a table and a picture."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from harness.statistics import Paired, error_bars, mean_and_deviation, paired
from matplotlib.figure import Figure

from reclaiming.arms import ARMS, Run

COLORS = {"return": "#757575", "weights": "#1565c0", "distil": "#8d4b1f", "rule": "#2e7d32"}


def difference(runs: Sequence[Run], arm: str) -> Paired:
    """Compare the accuracy of an arm with that of `keep`, seed by seed; all runs are of one case."""
    accuracy = {(run.arm, run.seed): run.accuracy for run in runs}
    return paired([accuracy[arm, run.seed] - run.accuracy for run in runs if run.arm == "keep"])


def cases(runs: Sequence[Run]) -> list[tuple[tuple[float, float], list[Run]]]:
    """Return the runs of each (dearer, reclaim), in order."""
    keys = sorted({(run.dearer, run.reclaim) for run in runs})
    return [(key, [run for run in runs if (run.dearer, run.reclaim) == key]) for key in keys]


def markdown(runs: Sequence[Run], budget: float) -> str:
    """Return the table: accuracies, and differences to `keep` with intervals."""
    lines = [
        "| added layers cost | reclaim at | arm | accuracy | less `keep` (95 %) | better with | steps after |",
        "| ---: | ---: | --- | ---: | ---: | ---: | ---: |",
    ]
    for (dearer, reclaim), found in cases(runs):
        for arm in ARMS:
            own = [run for run in found if run.arm == arm]
            steps = statistics.median(run.steps for run in own)
            gain = difference(found, arm)
            less = "| | |" if arm == "keep" else f"| {gain} | {gain.wins} of {gain.count} |"
            accuracy = mean_and_deviation([run.accuracy for run in own])
            lines.append(f"| x{dearer:g} | {reclaim / budget:.0%} | {arm} | {accuracy} {less} {steps:,.0f} |")
        reasons = Counter(run.reason for run in found if run.arm == "rule")
        told = ", ".join(f"{reason} {count}" for reason, count in sorted(reasons.items()))
        lines.append(f"| | | decision of `rule` | {told} | | | |")
    return "\n".join(lines)


def draw(runs: Sequence[Run], workload: str, budget: float, path: Path) -> None:
    """Draw each arm's paired differences to `keep`: seeds as dots, the mean with its interval."""
    found = cases(runs)
    figure = Figure(figsize=(2.3 * len(found) + 1, 3.8), layout="constrained")
    panels = figure.subplots(1, len(found), sharey=True, squeeze=False)[0]
    for axes, ((dearer, reclaim), own) in zip(panels, found, strict=True):
        base = {run.seed: run.accuracy for run in own if run.arm == "keep"}
        for place, arm in enumerate(ARMS[1:]):
            gain = difference(own, arm)
            dots = [run.accuracy - base[run.seed] for run in own if run.arm == arm]
            axes.plot([place] * len(dots), dots, ".", color=COLORS[arm], alpha=0.35, ms=5)
            axes.errorbar(place, gain.mean, error_bars([gain]), fmt="o", color=COLORS[arm], capsize=4)
        axes.axhline(0, color="black", lw=0.8)
        axes.set_xticks(range(len(ARMS) - 1), ARMS[1:], rotation=40, ha="right")
        axes.set_title(f"added layers x{dearer:g}\nreclaim at {reclaim / budget:.0%}", fontsize=9)
        axes.grid(axis="y", alpha=0.25)
    panels[0].set_ylabel(f"{workload}: test accuracy less `keep`")
    figure.savefig(path, dpi=120)
