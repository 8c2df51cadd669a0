"""Panels with the latest value in figures."""

from __future__ import annotations

from typing import Final

from espalier_monitoring.drawing.canvas import MUTED, Box, Canvas
from espalier_monitoring.drawing.reading import DrawnPanel
from espalier_monitoring.drawing.units import text_of

_LARGEST, _SMALLEST, _NAME = 30.0, 11.0, 9.0
_INK: Final = "#3c6e8f"
_ASIDE: Final = 14.0


def draw_figures(canvas: Canvas, at: Box, panel: DrawnPanel) -> None:
    """Draw the values below one another, as large as they fit; with their names where there are several."""
    height = at.height / len(panel.lines)
    room = at.width - 2 * _ASIDE
    texts = [
        line.name if panel.names else text_of(float(line.values[-1]), panel.unit, panel.decimals)
        for line in panel.lines
    ]
    with_names = len(panel.lines) > 1 and not panel.names
    size = _size(canvas, texts, room, height - (24 if with_names else 0))
    middle = at.left + at.width / 2
    for number, (line, text) in enumerate(zip(panel.lines, texts, strict=True)):
        center = at.top + (number + 0.5) * height
        shown = canvas.shortened(text, size, room, bold=True)
        canvas.text(middle, center - (9 if with_names else 0), shown, size, color=_INK, bold=True, aside="center")
        if with_names:
            below = center + 0.75 * size + 4
            canvas.text(middle, below, canvas.shortened(line.name, _NAME, room), _NAME, color=MUTED, aside="center")


def _size(canvas: Canvas, texts: list[str], width: float, height: float) -> float:
    """Return the size, in points, at which all fit."""
    size = min(_LARGEST, max(_SMALLEST, 0.45 * height))
    while size > _SMALLEST and any(canvas.width_of(text, size, bold=True) > width for text in texts):
        size -= 1
    return size
