"""Legends: names with samples of their colors, in lines that fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from espalier_monitoring.drawing.canvas import INK, MUTED, Box, Canvas

LINE: Final = 17.0
"""Pixels from one line of a legend to the next."""
_SIZE, _SWATCH, _APART = 8.5, 18.0, 20.0


@dataclass(frozen=True, slots=True)
class Entry:
    """One name."""

    name: str
    color: str
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Legend:
    """Names in lines, with their width in pixels; what did not fit is counted."""

    lines: tuple[tuple[tuple[Entry, float], ...], ...]
    left_out: int

    @property
    def height(self) -> float:
        """Pixels that it takes."""
        return LINE * len(self.lines)


def arranged(entries: Sequence[Entry], width: float, most: int, width_of: Callable[[str], float]) -> Legend:
    """Put names into `most` lines of `width` pixels or fewer; the last gives way to what says how many are left out."""
    lines: list[list[tuple[Entry, float]]] = []
    used = width
    for number, entry in enumerate(entries):
        wide = _SWATCH + width_of(entry.name) + _APART
        rest = len(entries) - number
        if used + wide - _APART > width and lines and len(lines) == most:
            return _shortened(lines, rest, width - width_of(_more(rest)))
        if used + wide - _APART > width:
            lines.append([])
            used = 0.0
        lines[-1].append((entry, wide))
        used += wide
    return Legend(tuple(map(tuple, lines)), 0)


def draw_legend(canvas: Canvas, at: Box, legend: Legend) -> None:
    """Draw it, left-aligned."""
    for number, line in enumerate(legend.lines):
        left, middle = at.left, at.top + (number + 0.5) * LINE
        for entry, wide in line:
            canvas.stroke(
                left, left + _SWATCH - 5, middle, entry.color, dashed=entry.dashed, thick=2 if entry.dashed else 3
            )
            shown = canvas.shortened(entry.name, _SIZE, min(wide - _SWATCH, at.width - _SWATCH))
            canvas.text(left + _SWATCH, middle, shown, _SIZE, color=INK)
            left += wide
        if legend.left_out and number == len(legend.lines) - 1:
            canvas.text(left, middle, _more(legend.left_out), _SIZE, color=MUTED)


def name_width(canvas: Canvas) -> Callable[[str], float]:
    """Return what measures names on a canvas."""
    return lambda name: canvas.width_of(name, _SIZE)


def _more(count: int) -> str:
    return f"and {count} more"


def _shortened(lines: list[list[tuple[Entry, float]]], left_out: int, width: float) -> Legend:
    last = lines[-1]
    while len(last) > 1 and sum(wide for _, wide in last) > width:
        last.pop()
        left_out += 1
    return Legend(tuple(map(tuple, lines)), left_out)
