"""The runs of a benchmark: the file that keeps them, so that one that was stopped continues; tables and a picture."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

from matplotlib.figure import Figure

from bench.paying.arms import Arm, Costs
from bench.statistics import Paired, error_bars, mean_and_deviation, paired
from espalier_core.base import Record
from espalier_lab.run_store import RunFile, head_of

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


class Run(Record):
    """One arm with one seed."""

    arm: Arm
    come: float | None
    """The share of the budget at which the GPU arrived; None for an arm without it."""
    seed: int
    accuracy: float
    """On the test split, at the end of the budget."""
    depth: int
    steps: int
    joint_steps: int
    """Of these by two workers."""
    actions: tuple[str, ...] = ()


class Head(Record):
    """What all runs of a file have in common."""

    job: str
    budget_seconds: float
    length: float
    """Share of the budget for which the GPU stays."""
    policy: str
    scaling: str
    costs: Costs


Key = tuple[Arm, float | None, int]
"""The arm, when its GPU came, the seed."""


class Runs(RunFile[Key, Run]):
    """All that are done."""

    def __init__(self, head: Head, path: Path | None) -> None:
        """Read the file; begin it where it is not there. Raises `RunStoreError` where it is of another job."""
        super().__init__(path, Run, lambda run: (run.arm, run.come, run.seed), head)
        self.head = head

    def accuracy(self, arm: Arm, come: float) -> dict[int, float]:
        """Return the accuracies of an arm by seed, under the timeline that begins at `come`."""
        when = None if arm is Arm.ALONE else come
        return {run.seed: run.accuracy for run in self if run.arm is arm and run.come == when}

    def difference(self, arm: Arm, other: Arm, come: float) -> Paired:
        """Return by how much `arm` ends better than `other`, seed by seed."""
        mine, theirs = self.accuracy(arm, come), self.accuracy(other, come)
        return paired([mine[seed] - theirs[seed] for seed in sorted(mine.keys() & theirs.keys())])


def kept_costs(path: Path | None) -> Costs | None:
    """Return the costs that a file of runs was begun with, None where there is none."""
    head = head_of(path, Head)
    return None if head is None else head.costs


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
    # The arms of one share stand side by side, in half of the room up to the next share.
    apart = 50 * min((later - earlier for earlier, later in pairwise(sorted(shares))), default=0.1) / len(arms)
    for place, arm in enumerate(arms):
        found = [runs.difference(arm, Arm.ALONE, share) for share in shares]
        places = [100 * share + (place - (len(arms) - 1) / 2) * apart for share in shares]
        axes.plot(places, [each.mean for each in found], color=COLORS[arm], lw=0.6, alpha=0.5)
        axes.errorbar(
            places,
            [each.mean for each in found],
            yerr=error_bars(found),
            color=COLORS[arm],
            fmt="o",
            ms=5,
            elinewidth=1.4,
            capsize=3,
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
