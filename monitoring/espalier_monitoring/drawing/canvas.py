"""A sheet of pixels to draw on, from the upper left: text, boxes, axes."""

from __future__ import annotations

import io
import math
from dataclasses import dataclass
from typing import Final, Literal

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import FancyBboxPatch

PAGE, PAPER, EDGE, INK, MUTED, GRID = "#f3f4f6", "#ffffff", "#e2e5ea", "#24313f", "#6b7785", "#eceff3"
_DPI: Final = 100


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle in pixels; `top` is counted from the top of the sheet."""

    left: float
    top: float
    width: float
    height: float

    def within(self, left: float, top: float, right: float, bottom: float) -> Box:
        """Return what is left inside these margins."""
        return Box(self.left + left, self.top + top, self.width - left - right, self.height - top - bottom)


class Canvas:
    """One sheet."""

    def __init__(self, width: int, height: int) -> None:
        """Blank."""
        self._width, self._height = width, height
        self._figure = Figure(figsize=(width / _DPI, height / _DPI), dpi=_DPI, facecolor=PAGE)
        self._renderer = FigureCanvasAgg(self._figure).get_renderer()  # type: ignore[no-untyped-call]  # matplotlib's
        self.page = self.axes(Box(0, 0, width, height))
        """Axes whose coordinates are pixels, under all others."""
        self.page.set(xlim=(0, width), ylim=(height, 0), zorder=-1)
        self.page.axis("off")

    def box(self, at: Box) -> None:
        """Draw a card."""
        shape = "round,pad=0,rounding_size=5"
        corner = (at.left, at.top)
        self.page.add_patch(FancyBboxPatch(corner, at.width, at.height, shape, fc=PAPER, ec=EDGE, lw=0.8))

    def text(
        self,
        left: float,
        middle: float,
        text: str,
        size: float,
        *,
        color: str = INK,
        bold: bool = False,
        aside: Literal["left", "center"] = "left",
        width: float = math.inf,
    ) -> None:
        """Write one line; `middle` is the height of its middle. Nothing in it is taken for mathematics.

        A text that is wider than `width` is cut, with dots at its end.
        """
        if self.width_of(text, size, bold=bold) > width:
            while text and self.width_of(f"{text}…", size, bold=bold) > width:
                text = text[:-1]
            text += "…"
        weight = "bold" if bold else "normal"
        self.page.text(
            left, middle, text, size=size, color=color, weight=weight, ha=aside, va="center", parse_math=False
        )

    def axes(self, at: Box) -> Axes:
        """Return axes in a rectangle."""
        left, top = at.left / self._width, at.top / self._height
        width, height = at.width / self._width, at.height / self._height
        return self._figure.add_axes((left, 1 - top - height, width, height))

    def width_of(self, text: str, size: float, *, bold: bool = False) -> float:
        """Return how many pixels wide a text is."""
        font = FontProperties(size=size, weight="bold" if bold else "normal")
        return float(self._renderer.get_text_width_height_descent(text, font, False)[0])

    def png(self) -> bytes:
        """Return the picture."""
        file = io.BytesIO()
        self._figure.savefig(file, format="png", dpi=_DPI, facecolor=PAGE)
        return file.getvalue()
