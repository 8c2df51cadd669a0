"""`training.png`: score and loss over budget time, with marks where GPUs came and went and the model grew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from espalier_api.events import AdaptationFinished, AllocationChanged, AnyEvent, EpochFinished
from espalier_api.report import AdaptationResult
from espalier_api.result import RunResult
from espalier_api.task import ACCURACY

mpl.use("Agg")

GREEN, GREY, BROWN, BLUE = "#2e7d32", "#757575", "#8d4b1f", "#1565c0"


@dataclass(frozen=True, slots=True)
class Curve:
    """One run to draw."""

    label: str
    result: RunResult
    events: tuple[AnyEvent, ...]


def draw_training(curve: Curve, path: Path) -> None:
    """Draw one run to `path` (PNG)."""
    figure = Figure(figsize=(9, 6.5), layout="constrained")
    accuracy, loss, gpus = figure.subplots(3, 1, sharex=True, height_ratios=[4, 2.2, 1])
    result = curve.result
    epochs = [event for event in curve.events if isinstance(event, EpochFinished)]
    times = [event.used_seconds for event in epochs]
    figure.suptitle(_title(result), fontsize=11)

    accuracy.plot(*_scores(epochs), color=GREEN, lw=1.2, label="validation")
    if result.score is not None:
        accuracy.plot(
            [result.used_seconds],
            [result.score.value],
            "o",
            color=BROWN,
            clip_on=False,
            label=f"test, at the end: {result.score.value:.3f}",
        )
    best_below = _named(accuracy, epochs)
    accuracy.grid(alpha=0.25)

    loss.plot(times, [event.train_loss for event in epochs], color=GREY, lw=1, label="train")
    loss.plot(times, [event.validation_loss for event in epochs], color=GREEN, lw=1, label="validation")
    loss.set_ylabel("loss")
    loss.set_yscale("log")
    loss.legend(loc="upper right", fontsize=8, frameon=False)
    loss.grid(alpha=0.25)

    _draw_gpus(gpus, curve)
    _mark_growth((accuracy, loss), curve.events)
    accuracy.legend(loc="upper right" if best_below else "lower right", fontsize=8, frameon=False)
    gpus.set_xlabel("time budget used (s)")
    gpus.set_xlim(0, max([result.time_budget_seconds, result.used_seconds, *times]) * 1.01)
    _save(figure, path)


def draw_comparison(curves: Sequence[Curve], path: Path) -> None:
    """Draw the validation scores of several runs in one picture at `path` (PNG)."""
    figure = Figure(figsize=(9, 4.5), layout="constrained")
    axes = figure.subplots()
    for curve, color in zip(curves, (GREY, GREEN, BLUE, BROWN), strict=False):
        epochs = [event for event in curve.events if isinstance(event, EpochFinished)]
        test = curve.result.score
        label = curve.label if test is None else f"{curve.label}: {test.value:.3f} on the test split"
        axes.plot(*_scores(epochs), color=color, lw=1.2, label=label)
        _mark_growth((axes,), curve.events)
    axes.set_xlabel("time budget used (s)")
    every = [event for curve in curves for event in curve.events if isinstance(event, EpochFinished)]
    best_below = _named(axes, every, "validation ")
    axes.legend(loc="upper right" if best_below else "lower right", fontsize=9, frameon=False)
    axes.grid(alpha=0.25)
    _save(figure, path)


def _scores(epochs: Sequence[EpochFinished]) -> tuple[list[float], list[float]]:
    """Return the times and values of the scores on the validation split."""
    scored = [(event.used_seconds, event.score.value) for event in epochs if event.score is not None]
    return [time for time, _ in scored], [value for _, value in scored]


def _named(axes: Axes, epochs: Sequence[EpochFinished], split: str = "") -> bool:
    """Name the axis after the measure; returns whether a lower value is better."""
    measure = next((event.score.by for event in epochs if event.score is not None), ACCURACY)
    axes.set_ylabel(f"{split}{measure.title}{'' if measure.higher_is_better else ' (lower is better)'}")
    return not measure.higher_is_better


def _title(result: RunResult) -> str:
    grown = result.depth_after - result.depth_before
    growth = f"grew from depth {result.depth_before} to {result.depth_after}" if grown else "did not grow"
    return (
        f"{result.job} (seed {result.seed}): {result.phase}, {result.reason}; "
        f"{result.used_seconds:.1f} of {result.time_budget_seconds:g} s; {growth}"
    )


def _draw_gpus(axes: Axes, curve: Curve) -> None:
    changes = [event for event in curve.events if isinstance(event, AllocationChanged)]
    end = max([curve.result.used_seconds, *(event.used_seconds for event in changes)])
    times = [event.used_seconds for event in changes] + [end]
    counts = [event.allocation.gpus for event in changes]
    if counts:
        axes.step(times, [*counts, counts[-1]], where="post", color=BLUE, lw=1.6)
        axes.fill_between(times, [*counts, counts[-1]], step="post", color=BLUE, alpha=0.15)
    axes.set_ylabel("GPUs")
    axes.set_ylim(0, max([1, *counts]) + 0.5)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=4, integer=True))


def _mark_growth(every: Sequence[Axes], events: Sequence[AnyEvent]) -> None:
    for event in events:
        if isinstance(event, AllocationChanged) and event.allocation.direction != "none" and event.used_seconds > 0:
            for axes in every:
                axes.axvline(event.used_seconds, color=BLUE, lw=1, ls=":", alpha=0.9)
        elif isinstance(event, AdaptationFinished) and event.adaptation.result is AdaptationResult.GROWN:
            for axes in every:
                axes.axvline(event.used_seconds, color=BROWN, lw=1, ls="--", alpha=0.8)
            every[0].annotate(
                f"{event.adaptation.action}",
                (event.used_seconds, 0.02),
                xycoords=("data", "axes fraction"),
                rotation=90,
                fontsize=7,
                color=BROWN,
                ha="right",
                va="bottom",
            )


def _save(figure: Figure, path: Path) -> None:
    """Write the figure whole or not at all."""
    try:
        figure.savefig(path, dpi=120)
    except OSError:
        path.unlink(missing_ok=True)
        raise
