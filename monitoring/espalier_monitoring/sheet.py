"""A whole dashboard on one sheet, in Grafana's layout.

A panel has lines over time, or stacked areas and a legend, or the latest values in figures.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import numpy as np
from grafana_foundation_sdk.models.dashboard import GridPos
from matplotlib.axes import Axes

from espalier_monitoring.canvas import GRID, INK, MUTED, Box, Canvas, text_of, ticks
from espalier_monitoring.reading import DrawnBoard, DrawnPanel, Marked, Values, Window, length_of

WIDTH: Final = 1600
"""Width of the sheet in pixels."""
_COLUMNS: Final = 24
_ASIDE, _GAP, _HEAD = 16.0, 8.0, 74.0
_ROW: Final = 33.0
"""Height of one unit of a panel's height, in pixels."""
_TITLE: Final = 32.0
"""Height of a panel's title, in pixels."""
_COLORS: Final = (
    *("#4c78a8", "#e0975a", "#5f9e6e", "#a97bb5", "#cc6b66", "#62a8a6", "#c9a93f", "#8c7a6b", "#7b88c4", "#a3b556"),
    *("#d193ad", "#808b96"),
)
_MARK: Final = "#7d3fa8"
_TICK_SIZE: Final = 8.0
_LEFT, _RIGHT, _TOP, _BELOW = 80.0, 18.0, 6.0, 22.0
"""Pixels around the axes, for the tick labels of both."""
_LEGEND_SHARE, _LEGEND_LINE, _LEGEND_SIZE, _SWATCH, _APART = 0.34, 17.0, 8.5, 18.0, 20.0
"""Maximum share of a panel's height; pixels of a line; points of its text; pixels of a color and between two names."""
_TICK_PIXELS: Final = (110.0, 34.0)
"""Minimum distance of two ticks in pixels, horizontal and vertical."""
_STEPS: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 7 * 86400)
_DAY: Final = 86400
_LARGEST, _SMALLEST, _NAME = 30.0, 11.0, 9.0
_FIGURE: Final = "#3c6e8f"
_MARGIN: Final = 14.0


def drawn(board: DrawnBoard) -> bytes:
    """Return the picture of a dashboard, a PNG."""
    places = [*(panel.place for panel in board.panels), *(place for _, place in board.headings)]
    rows = max(place.y + place.h for place in places)
    canvas = Canvas(WIDTH, round(_HEAD + rows * _ROW + _ASIDE))
    canvas.text(_ASIDE + 4, 27, board.title, 17, bold=True)
    canvas.text(_ASIDE + 4, 54, caption(board), 10, color=MUTED)
    for title, place in board.headings:
        at = box(place)
        canvas.text(at.left + 4, at.top + at.height / 2 + 3, title, 12, bold=True)
    for panel in board.panels:
        _draw(canvas, panel, board)
    return canvas.png()


def box(place: GridPos) -> Box:
    """Return the place of a panel on the sheet."""
    column = (WIDTH - 2 * _ASIDE + _GAP) / _COLUMNS
    return Box(_ASIDE + place.x * column, _HEAD + place.y * _ROW, place.w * column - _GAP, place.h * _ROW - _GAP)


def caption(board: DrawnBoard) -> str:
    """Return the line below the title: the chosen values, and the time range."""
    chosen = [f"{label} {value}" for label, value in board.chosen]
    start, end = (datetime.fromtimestamp(moment, UTC) for moment in (board.window.start, board.window.end))
    until = f"{end:%H:%M:%S}" if start.date() == end.date() else f"{end:%Y-%m-%d %H:%M:%S}"
    when = f"{start:%Y-%m-%d %H:%M:%S} to {until} UTC"
    return "  ·  ".join((*chosen, when, f"a point every {length_of(board.window.step)}"))


def _draw(canvas: Canvas, drawn: DrawnPanel, board: DrawnBoard) -> None:
    at = box(drawn.place)
    canvas.box(at)
    canvas.text(at.left + 12, at.top + 17, drawn.panel.title, 10, bold=True, width=at.width - 24)
    inside = at.within(0, _TITLE, 0, 0)
    if not drawn.lines:
        left, middle = at.left + at.width / 2, inside.top + inside.height / 2 - 8
        canvas.text(left, middle, "no data", 12, color=MUTED, aside="center")
    elif drawn.panel.single:
        draw_figures(canvas, inside, drawn)
    else:
        draw_lines(canvas, inside, drawn, board.window, board.marks)


@dataclass(frozen=True, slots=True)
class LegendEntry:
    """One name of a legend, or a remark if it has no color."""

    name: str
    color: str = ""
    dashed: bool = False


def arranged(
    entries: Sequence[LegendEntry], width: float, most: int, width_of: Callable[[str], float]
) -> list[list[tuple[LegendEntry, float]]]:
    """Return a legend: lines of at most `width` pixels, with the pixels of each name.

    There are at most `most` lines; a last entry counts the names that are left out.
    """
    for shown in range(len(entries), -1, -1):
        rest = len(entries) - shown
        lines: list[list[tuple[LegendEntry, float]]] = []
        used = math.inf
        for entry in [*entries[:shown], *([LegendEntry(f"and {rest} more")] if rest else [])]:
            wide = width_of(entry.name) + _APART + (_SWATCH if entry.color else 0)
            if used + wide - _APART > width:
                lines.append([])
                used = 0.0
            lines[-1].append((entry, wide))
            used += wide
        if len(lines) <= most:
            break
    return lines


def _draw_legend(canvas: Canvas, at: Box, lines: list[list[tuple[LegendEntry, float]]]) -> None:
    for number, line in enumerate(lines):
        left, middle = at.left, at.top + (number + 0.5) * _LEGEND_LINE
        for entry, wide in line:
            if not entry.color:
                canvas.text(left, middle, entry.name, _LEGEND_SIZE, color=MUTED)
                continue
            style, thick = ((0, (1.4, 0.9)), 2) if entry.dashed else ("solid", 3)
            ends = (left, left + _SWATCH - 5)
            canvas.page.plot(ends, (middle,) * 2, color=entry.color, lw=thick, ls=style, solid_capstyle="butt")
            canvas.text(
                left + _SWATCH, middle, entry.name, _LEGEND_SIZE, color=INK, width=min(wide, at.width) - _SWATCH
            )
            left += wide


def draw_lines(canvas: Canvas, at: Box, drawn: DrawnPanel, window: Window, marks: tuple[Marked, ...]) -> None:
    """Draw lines with their axes, the marks of the board, and a legend below."""
    panel, values = drawn.panel, [line.values for line in drawn.lines]
    colors = [_COLORS[number % len(_COLORS)] for number in range(len(values))]
    entries = [
        LegendEntry(line.name, color, dashed=number >= len(_COLORS))
        for number, (line, color) in enumerate(zip(drawn.lines, colors, strict=True))
    ]
    entries += [LegendEntry(mark.title, _MARK, dashed=True) for mark in marks if mark.times]
    most = max(1, int(_LEGEND_SHARE * at.height / _LEGEND_LINE))
    width = at.width - _LEFT - _RIGHT
    legend = arranged(entries, width, most, lambda name: canvas.width_of(name, _LEGEND_SIZE))
    below = _LEGEND_LINE * len(legend)
    _draw_legend(canvas, at.within(_LEFT, at.height - below - 6, _RIGHT, 6), legend)
    inside = at.within(_LEFT, _TOP, _RIGHT, _BELOW + below + 8)
    axes = canvas.axes(inside)

    if panel.stacked:
        _areas(axes, window.times, values, colors)
    else:
        for entry, line in zip(entries, values, strict=False):
            _line(axes, window.times, line, entry.color, dashed=entry.dashed, filled=len(values) == 1)
    for mark in marks:
        for time in mark.times:
            axes.axvline(time, color=_MARK, linewidth=1.1, linestyle=(0, (4, 3)), zorder=3)
    low, high = span(np.nansum(values, axis=0)[None] if panel.stacked else np.array(values), panel.least)
    axes.set_ylim(low, high)
    axes.set_xlim(window.start, max(window.end, window.start + 1))
    upright = ticks(low, high, panel.unit, max(2, int(inside.height / _TICK_PIXELS[1])), whole=panel.decimals == 0)
    axes.set_yticks(upright, [text_of(round(value, 12), panel.unit, bare=True) for value in upright])
    level = time_ticks(window, max(2, int(width / _TICK_PIXELS[0])))
    axes.set_xticks(list(level), list(level.values()))
    axes.set_facecolor("none")
    axes.grid(color=GRID, linewidth=0.9, zorder=1)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=_TICK_SIZE, labelcolor=MUTED, length=0, pad=5)
    axes.spines[:].set_visible(False)


def span(values: Values, least: float | None) -> tuple[float, float]:
    """Return the ends of a vertical axis for some values: with room above, and below only without a `least`."""
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    if least is not None:
        low = min(least, low)
    room = 0.08 * (high - low) or 0.1 * abs(high) or 1.0
    return (low if least is not None else low - room), high + room


def time_ticks(window: Window, most: int) -> dict[float, str]:
    """Return round moments (UTC) with their text, `most` or fewer."""
    length = max(window.end - window.start, 1.0)
    step = next((each for each in _STEPS if length / each <= most), _STEPS[-1] * math.ceil(length / most / _STEPS[-1]))
    form = "%H:%M:%S" if length <= _DAY else "%d %b %H:%M"
    first, last = math.ceil(window.start / step), math.floor(window.end / step)
    moments = [float(number * step) for number in range(first, last + 1)]
    return {moment: datetime.fromtimestamp(moment, UTC).strftime(form) for moment in moments}


def _line(axes: Axes, times: Values, values: Values, color: str, *, dashed: bool, filled: bool) -> None:
    axes.plot(times, values, color=color, linewidth=1.5, linestyle=(0, (4, 1)) if dashed else "solid", zorder=4)
    if filled:
        axes.fill_between(times, values, color=color, alpha=0.08, linewidth=0, zorder=2)
    there = np.isfinite(values)
    before, after = np.r_[False, there[:-1]], np.r_[there[1:], False]
    alone = there & ~before & ~after
    axes.plot(times[alone], values[alone], "o", color=color, markersize=3.5, zorder=4)


def _areas(axes: Axes, times: Values, values: list[Values], colors: list[str]) -> None:
    """Stack areas. A series without a value adds nothing; nothing is drawn if no series has one."""
    below = np.where(np.any(np.isfinite(values), axis=0), 0.0, math.nan)
    for line, color in zip(values, colors, strict=True):
        above = below + np.nan_to_num(line)
        axes.fill_between(times, below, above, color=color, alpha=0.55, linewidth=0, zorder=2)
        shown = np.where(np.isfinite(line), above, math.nan)
        _line(axes, times, shown, color, dashed=False, filled=False)
        below = above


def draw_figures(canvas: Canvas, at: Box, drawn: DrawnPanel) -> None:
    """Draw the values below one another, as large as they fit, with their names if there are several."""
    panel, lines = drawn.panel, drawn.lines
    height, room = at.height / len(lines), at.width - 2 * _MARGIN
    texts = [
        line.name if panel.names else text_of(float(line.values[-1]), panel.unit, panel.decimals) for line in lines
    ]
    with_names = len(lines) > 1 and not panel.names
    size = min(_LARGEST, max(_SMALLEST, 0.45 * (height - (24 if with_names else 0))))
    while size > _SMALLEST and any(canvas.width_of(text, size, bold=True) > room for text in texts):
        size -= 1
    left = at.left + at.width / 2
    for number, (line, text) in enumerate(zip(lines, texts, strict=True)):
        middle = at.top + (number + 0.5) * height
        above = 9 if with_names else 0
        canvas.text(left, middle - above, text, size, color=_FIGURE, bold=True, aside="center", width=room)
        if with_names:
            canvas.text(left, middle + 0.75 * size + 4, line.name, _NAME, color=MUTED, aside="center", width=room)
