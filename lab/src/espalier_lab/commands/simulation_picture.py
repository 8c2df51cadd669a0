"""The results of simulations as a picture: durations of jobs, numbers of unfinished jobs, and holders of GPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from espalier_lab.simulator.holdings import HeldSpan

mpl.use("Agg")

_HOUR: Final = 3600.0
_COLOURS: Final = "viridis_r"
_MOST_SHOWN: Final = 6
"""Maximum number of simulations, the first ones, whose holders of GPUs are drawn: each takes a panel."""
_PARTS: Final = 200
"""Number of time intervals over which held GPUs are averaged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnSimulation:
    """One simulation to draw. Seconds of simulated time."""

    label: str
    gpus: int
    spans: Sequence[tuple[float, float]]
    """Submission and completion of each job."""
    held: Sequence[Sequence[HeldSpan]]
    """Held GPUs of each job."""


def draw_simulations(courses: Sequence[DrawnSimulation], path: Path) -> None:
    """Draw `courses` side by side in one picture at `path`; its suffix decides the format."""
    shown = courses[:_MOST_SHOWN]
    figure = Figure(figsize=(9, 9 + 2.5 * len(shown)), layout="constrained")
    times, unfinished, used, *holders = figure.subplots(3 + len(shown), 1)
    for course in courses:
        jcts = sorted((completed - submitted) / _HOUR for submitted, completed in course.spans)
        shares = [(place + 1) / len(jcts) for place in range(len(jcts))]
        mean = sum(jcts) / len(jcts)
        times.step(jcts, shares, where="post", lw=1.3, label=f"{course.label}: mean {mean:.2f} h")
        _count(unfinished, course.spans)
        _average(used, [span for spans in course.held for span in spans])
    times.set_xscale("log")
    times.set_xlabel("job completion time (h)")
    times.set_ylabel("part of the jobs")
    times.set_ylim(0, 1.02)
    times.legend(loc="lower right", fontsize=9, frameon=False)
    unfinished.set_ylabel("unfinished jobs")
    used.set_ylabel("GPUs held, on average")
    used.set_ylim(0, 1.02 * max(course.gpus for course in courses))
    used.sharex(unfinished)
    most = max((span.gpus for course in shown for spans in course.held for span in spans), default=1.0)
    scale = LogNorm(1, max(2.0, most))
    for axes, course in zip(holders, shown, strict=True):
        _draw_holders(axes, course, scale)
        axes.sharex(unfinished)
    if holders:
        colours = ScalarMappable(scale, _COLOURS)
        figure.colorbar(colours, ax=holders, label="GPUs held", format="%g", fraction=0.03, pad=0.01)
    (holders[-1] if holders else used).set_xlabel("time (h)")
    for axes in (times, unfinished, used):
        axes.grid(alpha=0.25)
    figure.savefig(path, dpi=120)


def _draw_holders(axes: Axes, course: DrawnSimulation, scale: LogNorm) -> None:
    """Draw the times at which each job waited (grey) or held GPUs, one line per job, the earliest at the top."""
    order = sorted(range(len(course.spans)), key=lambda index: course.spans[index])
    waits, lines, gpus = [], [], list[float]()
    for place, index in enumerate(order):
        submitted, completed = course.spans[index]
        waits.append([(submitted / _HOUR, place), (completed / _HOUR, place)])
        for span in course.held[index]:
            lines.append([(span.start / _HOUR, place), (span.end / _HOUR, place)])
            gpus.append(max(1.0, span.gpus))
    width = max(0.4, min(4.0, 150 / len(order)))
    axes.add_collection(LineCollection(waits, colors="0.88", linewidths=width, rasterized=True))
    held = LineCollection(lines, linewidths=width, norm=scale, cmap=_COLOURS, capstyle="butt", rasterized=True)
    held.set_array(gpus)
    axes.add_collection(held)
    axes.set_ylim(len(order), -1)
    axes.set_ylabel("job")
    axes.set_title(f"{course.label}: who held GPUs (grey: none)", fontsize=9, loc="left")


def _count(axes: Axes, spans: Iterable[tuple[float, float]]) -> None:
    """Draw the number of spans at each time."""
    changes = Counter[float]()
    for start, end in spans:
        changes[start] += 1
        changes[end] -= 1
    moments = sorted(changes)
    counts = accumulate(changes[moment] for moment in moments)
    axes.step([moment / _HOUR for moment in moments], list(counts), where="post", lw=1.1)


def _average(axes: Axes, spans: Sequence[HeldSpan]) -> None:
    """Draw the held GPUs, averaged over intervals, as they change hands too often to be seen."""
    width = max((span.end for span in spans), default=0.0) / _PARTS
    parts = [0.0] * _PARTS
    for start, end, gpus in spans:
        for part in range(int(start / width), min(_PARTS, int(end / width) + 1)):
            overlap = min(end, (part + 1) * width) - max(start, part * width)
            parts[part] += max(0.0, overlap) * gpus / width
    axes.stairs(parts, [part * width / _HOUR for part in range(_PARTS + 1)], lw=1.1)
