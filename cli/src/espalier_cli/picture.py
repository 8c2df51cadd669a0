"""`training.png`: score and loss over budget time, with marks where GPUs came and went and the model grew.

Trials of growths are shaded, with the loss of each arm at their end.

The marks' labels are in a separate strip above the curves; growths too close for a label each share one.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import cycle, groupby, product
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from espalier_core.files.documents import write_bytes_atomically
from espalier_core.types.advice import Action
from espalier_core.types.events import (
    AdaptationFinished,
    AllocationChanged,
    AnyEvent,
    BatchSizeChanged,
    EpochFinished,
    TrainerStarted,
)
from espalier_core.types.report import AdaptationResult
from espalier_core.types.result import RunResult
from espalier_core.types.task import ACCURACY

mpl.use("Agg")

GREEN, GREY, BROWN, BLUE = "#2e7d32", "#757575", "#8d4b1f", "#1565c0"

_COLOURS: Final = (GREY, GREEN, BLUE, BROWN)
"""Colours of the runs of a comparison, in order."""
_STYLES: Final = ("-", "--", ":", "-.")
"""Line styles of a comparison: the next one when all colours are used up."""

_STRIP_INCHES: Final = 1.15
"""Height of the strip of labels."""
_LABEL_WIDTH: Final = 0.02
"""Part of the time axis that a label needs, which is written upwards in 7 points."""
_LABEL_LENGTH: Final = 22
"""Maximum length of a label, in characters."""


@dataclass(frozen=True, slots=True)
class Curve:
    """One run to draw."""

    label: str
    result: RunResult
    events: tuple[AnyEvent, ...]


@dataclass(frozen=True, slots=True)
class Label:
    """A text at a budget time."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Trial:
    """Growths tried by extra workers."""

    began: float
    """Budget time of the start, in seconds."""
    ended: float
    arms: tuple[tuple[str, float], ...]
    """Actions with their validation losses."""


def labels_of(events: Iterable[AnyEvent], end: float) -> tuple[Label, ...]:
    """Return the labels of growths and of faster computations on an axis from 0 to `end` seconds.

    Labels do not overlap: events too close to each other share the label of the first: `3x Deepen(block0)`, or
    `Deepen(a) +2` if they differ.
    """
    groups: list[list[tuple[float, str]]] = []
    for event in events:
        if isinstance(event, AdaptationFinished) and event.adaptation.result in _MARKS:
            each = event.used_seconds, event.adaptation.action
            if groups and each[0] - groups[-1][0][0] < _LABEL_WIDTH * end:
                groups[-1].append(each)
            else:
                groups.append([each])
    return tuple(Label(group[0][0], _shared([action for _, action in group])) for group in groups)


def _shared(actions: Sequence[str]) -> str:
    runs = [(action, len(list(same))) for action, same in groupby(actions)]
    action, count = runs[0]
    many, more = f"{count}x " if count > 1 else "", f" +{len(actions) - count}" if len(runs) > 1 else ""
    room = _LABEL_LENGTH - len(many) - len(more)
    return f"{many}{action if len(action) <= room else action[: room - 1] + '…'}{more}"


def draw_training(curve: Curve, path: Path) -> None:
    """Draw one run to `path` (PNG)."""
    end = max([curve.result.time_budget_seconds, curve.result.used_seconds, *(e.used_seconds for e in curve.events)])
    labels, sizes = labels_of(curve.events, end), _batch_sizes(curve)
    heights = [_STRIP_INCHES] * bool(labels) + [3.1, 1.8, 0.85, 0.85] + [0.85] * bool(sizes[0])
    figure = Figure(figsize=(9, sum(heights) + 0.8), layout="constrained")
    every = list(figure.subplots(len(heights), 1, sharex=True, height_ratios=heights))
    if labels:
        _draw_labels(every.pop(0), labels)
    accuracy, loss, depth, gpus, *rest = every
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
    _name(accuracy, epochs)
    accuracy.grid(alpha=0.25)

    loss.plot(times, [event.train_loss for event in epochs], color=GREY, lw=1, label="train")
    loss.plot(times, [event.validation_loss for event in epochs], color=GREEN, lw=1, label="validation")
    _draw_trials(loss, trials_of(curve.events))
    loss.set_ylabel("loss")
    loss.set_yscale("log")
    loss.legend(loc="upper right", fontsize=8, frameon=False)
    loss.grid(alpha=0.25)

    _draw_depth(depth, curve)
    _draw_gpus(gpus, curve)
    for axes in rest:
        axes.step(*sizes, where="post", color=BROWN, lw=1.6)
        axes.set_ylabel("batch size")
        axes.set_ylim(0, max(sizes[1]) * 1.15)
    marks = _mark((accuracy, loss, depth, *rest), curve.events)
    shown, _ = accuracy.get_legend_handles_labels()
    accuracy.legend(handles=[*shown, *marks], loc="best", fontsize=8, framealpha=0.7, edgecolor="none")
    every[-1].set_xlabel("time budget used (s)")
    every[-1].set_xlim(0, end * 1.01)
    _save(figure, path)


def draw_comparison(curves: Sequence[Curve], path: Path) -> None:
    """Draw the validation scores of several runs in one picture at `path` (PNG)."""
    events = sorted((event for curve in curves for event in curve.events), key=lambda event: event.used_seconds)
    end = max([*(curve.result.time_budget_seconds for curve in curves), *(event.used_seconds for event in events)])
    labels = labels_of(events, end)
    heights = [_STRIP_INCHES] * bool(labels) + [4.0]
    figure = Figure(figsize=(9, sum(heights) + 0.5), layout="constrained")
    *strip, axes = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights, squeeze=False)[:, 0]
    for above in strip:
        _draw_labels(above, labels)
    for curve, (style, color) in zip(curves, cycle(product(_STYLES, _COLOURS)), strict=False):
        epochs = [event for event in curve.events if isinstance(event, EpochFinished)]
        test = curve.result.score
        label = curve.label if test is None else f"{curve.label}: {test.value:.3f} on the test split"
        axes.plot(*_scores(epochs), color=color, ls=style, lw=1.2, label=label)
    marks = _mark((axes,), events)
    axes.set_xlim(0, end * 1.01)
    axes.set_xlabel("time budget used (s)")
    _name(axes, [event for event in events if isinstance(event, EpochFinished)], "validation ")
    shown, _ = axes.get_legend_handles_labels()
    axes.legend(handles=[*shown, *marks], loc="best", fontsize=9, framealpha=0.7, edgecolor="none")
    axes.grid(alpha=0.25)
    _save(figure, path)


def _scores(epochs: Sequence[EpochFinished]) -> tuple[list[float], list[float]]:
    """Return the times and values of the scores on the validation split."""
    scored = [(event.used_seconds, event.score.value) for event in epochs if event.score is not None]
    return [time for time, _ in scored], [value for _, value in scored]


def _name(axes: Axes, epochs: Sequence[EpochFinished], split: str = "") -> None:
    """Name the axis after the measure."""
    measure = next((event.score.by for event in epochs if event.score is not None), ACCURACY)
    axes.set_ylabel(f"{split}{measure.title}{'' if measure.higher_is_better else ' (lower is better)'}")


def _title(result: RunResult) -> str:
    grown = result.depth_after - result.depth_before
    growth = f"grew from depth {result.depth_before} to {result.depth_after}" if grown else "did not grow"
    return (
        f"{result.job} (seed {result.seed}): {result.phase}, {result.reason}; "
        f"{result.used_seconds:.1f} of {result.time_budget_seconds:g} s; {growth}"
    )


def _draw_depth(axes: Axes, curve: Curve) -> None:
    """Draw the layers of the model over the budget."""
    result = curve.result
    changes = [event for event in curve.events if isinstance(event, AdaptationFinished)]
    times = [0.0, *(event.used_seconds for event in changes), result.used_seconds]
    depths = [result.depth_before, *(event.adaptation.depth_after for event in changes), result.depth_after]
    axes.step(times, depths, where="post", color=GREEN, lw=1.6)
    axes.set_ylabel("layers")
    axes.set_ylim(0, max([1, *depths]) * 1.2)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=4, integer=True))


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


def _batch_sizes(curve: Curve) -> tuple[list[float], list[int]]:
    """Return (seconds, sizes) from the first change of the batch size on; empty if it never changed."""
    changes = [event for event in curve.events if isinstance(event, BatchSizeChanged)]
    if not changes:
        return [], []
    times = [0.0, *(event.used_seconds for event in changes), curve.result.used_seconds]
    sizes = [changes[0].before, *(event.batch_size for event in changes), changes[-1].batch_size]
    return times, sizes


def trials_of(events: Iterable[AnyEvent]) -> tuple[Trial, ...]:
    """Return the decided trials, with their finished arms."""
    return tuple(
        Trial(
            event.adaptation.used_seconds,
            event.used_seconds,
            tuple((arm.action, arm.loss) for arm in event.adaptation.arms if arm.loss is not None),
        )
        for event in events
        if isinstance(event, AdaptationFinished) and event.adaptation.arms
    )


def _draw_trials(axes: Axes, trials: Sequence[Trial]) -> None:
    for trial in trials:
        axes.axvspan(trial.began, trial.ended, color=BLUE, alpha=0.08, lw=0)
    arms = [(trial.ended, action, loss) for trial in trials for action, loss in trial.arms]
    nothing = str(Action.nothing())
    for label, color, found in (
        ("tried: a growth", BROWN, [arm for arm in arms if arm[1] != nothing]),
        ("tried: nothing", GREY, [arm for arm in arms if arm[1] == nothing]),
    ):
        if found:
            axes.plot([arm[0] for arm in found], [arm[2] for arm in found], "D", ms=4, color=color, label=label)


def _draw_labels(axes: Axes, labels: Iterable[Label]) -> None:
    axes.set_axis_off()
    axes.set_ylim(0, 1)
    for label in labels:
        axes.text(label.at, 0.0, label.text, rotation=90, fontsize=7, color=BROWN, ha="center", va="bottom")


_KINDS: Final[dict[str, dict[str, Any]]] = {
    "GPUs came or went": {"color": BLUE, "lw": 1, "ls": ":"},
    "the model grew": {"color": BROWN, "lw": 1, "ls": "--"},
    "the model grew, tried first": {"color": BROWN, "lw": 1, "ls": "-"},
    "growth declined, tried first": {"color": BROWN, "lw": 1, "ls": ":"},
    "growth declined": {"color": BROWN, "lw": 1, "ls": (0, (1, 4))},
    "growth unknown": {"color": GREY, "lw": 1, "ls": (0, (1, 4))},
    "steps are computed faster": {"color": GREEN, "lw": 1, "ls": "--"},
    "the trainer was started again": {"color": GREY, "lw": 1, "ls": "-."},
}
_MARKS: Final = {
    AdaptationResult.GROWN: "the model grew",
    AdaptationResult.REWRITTEN: "steps are computed faster",
    AdaptationResult.DECLINED: "growth declined",
    AdaptationResult.UNKNOWN: "growth unknown",
}


def _mark(every: Sequence[Axes], events: Iterable[AnyEvent]) -> list[Line2D]:
    """Draw lines at changes; return one of each kind, for a legend."""
    found: set[str] = set()
    for event in events:
        if kind := _kind(event):
            found.add(kind)
            for axes in every:
                axes.axvline(event.used_seconds, alpha=0.8, **_KINDS[kind])
    return [Line2D([], [], label=kind, **look) for kind, look in _KINDS.items() if kind in found]


def _kind(event: AnyEvent) -> str:
    if isinstance(event, AllocationChanged) and event.allocation.direction != "none" and event.used_seconds > 0:
        return "GPUs came or went"
    if isinstance(event, AdaptationFinished):
        mark = _MARKS.get(event.adaptation.result, "")
        return f"{mark}, tried first" if mark and event.adaptation.basis == "tried" else mark
    return "the trainer was started again" if isinstance(event, TrainerStarted) and event.resumed else ""


def _save(figure: Figure, path: Path) -> None:
    """Write the figure completely or not at all."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format=path.suffix[1:] or "png", dpi=120)
    write_bytes_atomically(path, drawn.getvalue())
