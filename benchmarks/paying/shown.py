"""The result as Markdown, and as a picture."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from harness.statistics import error_bars, mean_and_deviation
from matplotlib.figure import Figure

from paying.arms import Arm
from paying.runs import Runs

COLORS: Final = {
    Arm.ALONE: "#757575",
    Arm.ELASTIC: "#1565c0",
    Arm.SCRATCH: "#8d4b1f",
    Arm.AGENT: "#2e7d32",
    Arm.FIXED: "#9ccc65",
}
COMPARED: Final = (
    (Arm.ELASTIC, Arm.ALONE),
    (Arm.AGENT, Arm.ELASTIC),
    (Arm.FIXED, Arm.ELASTIC),
    (Arm.AGENT, Arm.SCRATCH),
    (Arm.AGENT, Arm.FIXED),
    (Arm.AGENT, Arm.ALONE),
)


def lines(runs: Runs, shares: Sequence[float]) -> Iterator[str]:
    """Give the tables: accuracies of all arms, then paired differences."""
    yield f"| GPU from | {' | '.join(arm.value for arm in Arm)} |"
    yield "| ---: |" + " ---: |" * len(Arm)
    for share in shares:
        accuracies = (list(runs.accuracy(arm, share).values()) for arm in Arm)
        yield f"| {share:.0%} | {' | '.join(map(mean_and_deviation, accuracies))} |"
    yield ""
    yield f"| GPU from | {' | '.join(f'{one.name.lower()} - {other.name.lower()}' for one, other in COMPARED)} |"
    yield "| ---: |" + " ---: |" * len(COMPARED)
    for share in shares:
        yield f"| {share:.0%} | {' | '.join(runs.difference(*pair, share).cell for pair in COMPARED)} |"


def draw(runs: Runs, shares: Sequence[float], path: Path) -> None:
    """Draw how much better than the small net on its own GPU each arm ends, with its interval, by the GPU's arrival."""
    figure = Figure(figsize=(8.5, 4.2), layout="constrained")
    axes = figure.subplots()
    axes.axhline(0, color=COLORS[Arm.ALONE], lw=1.5, label=_legend(runs, Arm.ALONE, shares))
    arms = [arm for arm in Arm if arm is not Arm.ALONE]
    for place, arm in enumerate(arms):
        found = [runs.difference(arm, Arm.ALONE, share) for share in shares]
        axes.errorbar(
            [100 * share + (place - (len(arms) - 1) / 2) * 1.2 for share in shares],
            [each.mean for each in found],
            yerr=error_bars(found),
            color=COLORS[arm],
            marker="o",
            ms=4,
            lw=1.2,
            capsize=2,
            label=_legend(runs, arm, shares),
        )
    axes.set_xticks([100 * share for share in shares], [f"{share:.0%}" for share in shares])
    axes.set_xlabel("share of the budget that is used when the GPU comes")
    axes.set_ylabel("test accuracy, relative to the small net alone")
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=8)
    axes.grid(alpha=0.25)
    axes.set_title(
        f"{runs.head.job}: {runs.head.budget_seconds:g} s, GPU for {runs.head.length:.0%} of it; "
        f"{len(runs.accuracy(Arm.ALONE, shares[0]))} seeds, 95 % intervals of paired differences",
        fontsize=9,
    )
    figure.savefig(path, dpi=120)


def _legend(runs: Runs, arm: Arm, shares: Sequence[float]) -> str:
    values = [value for share in shares for value in runs.accuracy(arm, share).values()]
    return f"{arm.value}: {statistics.fmean(values):.3f}"
