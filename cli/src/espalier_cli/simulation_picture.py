"""What came out of simulations, as a picture: how long jobs took, how many were unfinished, and the GPUs in use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from espalier_operator.simulation.holdings import Span

mpl.use("Agg")

_HOUR: Final = 3600.0
_PARTS: Final = 200
"""Of the time, in each of which the GPUs held are averaged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """One simulation to draw. Seconds of simulated time."""

    label: str
    gpus: int
    spans: Sequence[tuple[float, float]]
    """When each job was submitted and was complete."""
    held: Sequence[Span]
    """Of all jobs."""


def draw_simulations(courses: Sequence[Course], path: Path) -> None:
    """Draw `courses` side by side in one picture at `path`; its suffix decides the format."""
    figure = Figure(figsize=(9, 9), layout="constrained")
    times, unfinished, used = figure.subplots(3, 1)
    for course in courses:
        jcts = sorted((completed - submitted) / _HOUR for submitted, completed in course.spans)
        shares = [(place + 1) / len(jcts) for place in range(len(jcts))]
        mean = sum(jcts) / len(jcts)
        times.step(jcts, shares, where="post", lw=1.3, label=f"{course.label}: mean {mean:.2f} h")
        _count(unfinished, course.spans)
        _average(used, course.held)
    times.set_xscale("log")
    times.set_xlabel("job completion time (h)")
    times.set_ylabel("part of the jobs")
    times.set_ylim(0, 1.02)
    times.legend(loc="lower right", fontsize=9, frameon=False)
    unfinished.set_ylabel("unfinished jobs")
    used.set_ylabel("GPUs held, on average")
    used.set_ylim(0, 1.02 * max(course.gpus for course in courses))
    used.set_xlabel("time (h)")
    used.sharex(unfinished)
    for axes in (times, unfinished, used):
        axes.grid(alpha=0.25)
    figure.savefig(path, dpi=120)


def _count(axes: Axes, spans: Iterable[tuple[float, float]]) -> None:
    """Draw how many spans there are at each time."""
    changes = Counter[float]()
    for start, end in spans:
        changes[start] += 1
        changes[end] -= 1
    moments = sorted(changes)
    counts = accumulate(changes[moment] for moment in moments)
    axes.step([moment / _HOUR for moment in moments], list(counts), where="post", lw=1.1)


def _average(axes: Axes, spans: Sequence[Span]) -> None:
    """Draw the GPUs held, on average over parts of the time, as they change hands too often to be seen."""
    width = max((span.end for span in spans), default=0.0) / _PARTS
    parts = [0.0] * _PARTS
    for start, end, gpus in spans:
        for part in range(int(start / width), min(_PARTS, int(end / width) + 1)):
            overlap = min(end, (part + 1) * width) - max(start, part * width)
            parts[part] += max(0.0, overlap) * gpus / width
    axes.stairs(parts, [part * width / _HOUR for part in range(_PARTS + 1)], lw=1.1)
