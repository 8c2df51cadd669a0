"""Two runs as a moving picture: the score over the budget, the layers and the GPUs, as README shows them.

`--not-grown` and `--grown` are folders of `espalier run --output`, as `make run` leaves them in runs/.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.animation import FuncAnimation, PillowWriter
from matplotlib.figure import Figure

from bench.command import BenchError, Option
from bench.printing import Parts
from espalier_core.types.events import AdaptationFinished, AllocationChanged, EpochFinished
from espalier_core.types.result import read_history, read_result
from espalier_operator.local.files import HISTORY_FILE, RESULT_FILE

FRAMES_A_SECOND = 12
OPTIONS = {
    "not_grown": Option(Path("runs/not-grown")),
    "grown": Option(Path("runs/grown")),
    "gif": Option(Path("docs/images/digits.gif"), "the picture"),
    "seconds": Option(8.0),
}
GREEN, GREY, BLUE = "#2e7d32", "#9e9e9e", "#1565c0"

Steps = list[tuple[float, float]]
"""Seconds of the budget, and the value from then on."""


@dataclass(frozen=True, slots=True)
class Run:
    """What is drawn of a run."""

    budget: float
    test: float
    measure: str
    scores: Steps
    """The mean of the last evaluations."""
    layers: Steps
    gpus: Steps


def run_in(folder: Path) -> Run:
    """Read a run; raises `OSError`, `DocumentError` or `BenchError` where the folder holds none with a score."""
    result, events = read_result(folder / RESULT_FILE), read_history(folder / HISTORY_FILE)
    if result.score is None:
        raise BenchError(f"{folder}: the run has no test score; it ended as {result.phase}, {result.reason}")
    epochs = [event for event in events if isinstance(event, EpochFinished) and event.score is not None]
    scores = [event.score.value for event in epochs if event.score is not None]
    window = max(1, len(epochs) // 20)
    return Run(
        result.time_budget_seconds,
        result.score.value,
        result.score.by.title,
        [
            (event.used_seconds, statistics.fmean(scores[max(0, place + 1 - window) : place + 1]))
            for place, event in enumerate(epochs)
        ],
        [(0.0, result.depth_before)]
        + [(each.used_seconds, each.adaptation.depth_after) for each in events if isinstance(each, AdaptationFinished)],
        [(each.used_seconds, each.allocation.gpus) for each in events if isinstance(each, AllocationChanged)],
    )


def until(steps: Sequence[tuple[float, float]], now: float) -> tuple[list[float], list[float]]:
    """Return times and values up to `now`, the last value held until then."""
    seen = [each for each in steps if each[0] <= now]
    return [time for time, _ in seen] + [now] * bool(seen), [value for _, value in seen] + [seen[-1][1]] * bool(seen)


def draw(not_grown: Run, grown: Run, path: Path, seconds: float) -> None:
    """Write the picture."""
    figure = Figure(figsize=(7.2, 4.4), dpi=90, layout="constrained")
    score, layers, gpus = figure.subplots(3, 1, sharex=True, height_ratios=[4, 1, 1])
    budget, frames = grown.budget, int(seconds * FRAMES_A_SECOND)
    rest = 2 * FRAMES_A_SECOND  # the end stays for a while

    def frame(number: int) -> None:
        now = budget * min(1.0, (number + 1) / frames)
        for axes in (score, layers, gpus):
            axes.clear()
            axes.set_xlim(0, budget)
        for run, colour, name in ((not_grown, GREY, "not grown"), (grown, GREEN, "grown")):
            label = f"{name}: {run.test:.2f} on the test split" if now >= budget else name
            score.plot(*until(run.scores, now), color=colour, lw=1.8, label=label)
        score.set_ylim(0, 1)
        score.set_ylabel(f"validation {grown.measure}")
        score.legend(loc="lower right", frameon=False)
        score.grid(alpha=0.25)
        layers.step(*until(not_grown.layers, now), where="post", color=GREY, lw=1.8)
        layers.step(*until(grown.layers, now), where="post", color=GREEN, lw=1.8)
        layers.set_ylabel("layers")
        layers.set_ylim(0, max(value for _, value in grown.layers) + 1)
        gpus.fill_between(*until(grown.gpus, now), step="post", color=BLUE, alpha=0.5, lw=0)
        gpus.set_ylabel("GPUs")
        gpus.set_ylim(0, max(value for _, value in grown.gpus) + 0.5)
        gpus.set_yticks(range(int(max(value for _, value in grown.gpus)) + 1))
        gpus.set_xlabel("time budget used (s)")

    moving = FuncAnimation(figure, lambda number: frame(number), frames=frames + rest, init_func=lambda: None)
    moving.save(path, writer=PillowWriter(fps=FRAMES_A_SECOND))


def run(options: argparse.Namespace) -> Parts:
    """Read both runs and draw them."""
    draw(run_in(options.not_grown), run_in(options.grown), options.gif, options.seconds)
    yield f"{options.gif}"
