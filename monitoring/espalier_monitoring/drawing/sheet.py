"""A whole dashboard on one sheet, laid out as Grafana lays it out."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from grafana_foundation_sdk.models.dashboard import GridPos

from espalier_monitoring.drawing.canvas import MUTED, Box, Canvas
from espalier_monitoring.drawing.panels import draw_figures, draw_lines
from espalier_monitoring.drawing.reading import DrawnBoard, DrawnPanel
from espalier_monitoring.drawing.substitution import length_of

WIDTH: Final = 1600
"""Pixels."""
_COLUMNS: Final = 24
_ASIDE, _GAP, _HEAD = 16.0, 8.0, 74.0
_ROW: Final = 33.0
"""Pixels of one unit of a panel's height."""
_TITLE: Final = 32.0
"""Pixels of a panel's title."""


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
    """Return where a panel lies on the sheet."""
    column = (WIDTH - 2 * _ASIDE + _GAP) / _COLUMNS
    return Box(_ASIDE + place.x * column, _HEAD + place.y * _ROW, place.w * column - _GAP, place.h * _ROW - _GAP)


def caption(board: DrawnBoard) -> str:
    """Return the line below the title: what was chosen, and when."""
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
