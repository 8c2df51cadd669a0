"""A sheet of pixels to draw on, from the upper left: text, boxes, axes."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Final, Literal

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.patches import FancyBboxPatch

PAGE, PAPER, EDGE, INK, MUTED, GRID = "#f3f4f6", "#ffffff", "#e2e5ea", "#24313f", "#6b7785", "#eceff3"
_DPI: Final = 100

Aside = Literal["left", "center", "right"]


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
        self._pixels = FigureCanvasAgg(self._figure)

    def box(self, at: Box) -> None:
        """Draw a card."""
        left, bottom, width, height = self._share(at)
        patch = FancyBboxPatch(
            (left, bottom),
            width,
            height,
            boxstyle="round,pad=0,rounding_size=0.003",
            mutation_aspect=self._width / self._height,
            transform=self._figure.transFigure,
            facecolor=PAPER,
            edgecolor=EDGE,
            linewidth=0.8,
            zorder=-1,  # below axes
        )
        self._figure.add_artist(patch)

    def text(
        self,
        left: float,
        middle: float,
        text: str,
        size: float,
        *,
        color: str = INK,
        bold: bool = False,
        aside: Aside = "left",
    ) -> None:
        """Write one line; `middle` is the height of its middle. Nothing in it is taken for mathematics."""
        self._figure.text(
            left / self._width,
            1 - middle / self._height,
            text,
            fontsize=size,
            color=color,
            fontweight="bold" if bold else "normal",
            ha=aside,
            va="center",
            parse_math=False,
        )

    def stroke(
        self, left: float, right: float, middle: float, color: str, *, dashed: bool = False, thick: float = 3
    ) -> None:
        """Draw a level line, as in a legend."""
        self._figure.add_artist(
            Line2D(
                (left / self._width, right / self._width),
                (1 - middle / self._height,) * 2,
                color=color,
                linewidth=thick,
                linestyle=(0, (1.4, 0.9)) if dashed else "solid",
                solid_capstyle="butt",
            )
        )

    def axes(self, at: Box) -> Axes:
        """Return axes in a rectangle."""
        left, bottom, width, height = self._share(at)
        return self._figure.add_axes((left, bottom, width, height))

    def width_of(self, text: str, size: float, *, bold: bool = False) -> float:
        """Return how many pixels wide a text is."""
        font = FontProperties(size=size, weight="bold" if bold else "normal")
        renderer = self._pixels.get_renderer()  # type: ignore[no-untyped-call]  # matplotlib's
        width, _, _ = renderer.get_text_width_height_descent(text, font, False)
        return float(width)

    def shortened(self, text: str, size: float, width: float, *, bold: bool = False) -> str:
        """Return as much of a text as fits, with dots where some is left out."""
        if self.width_of(text, size, bold=bold) <= width:
            return text
        kept = text
        while kept and self.width_of(f"{kept}…", size, bold=bold) > width:
            kept = kept[:-1]
        return f"{kept}…"

    def png(self) -> bytes:
        """Return the picture."""
        file = io.BytesIO()
        self._figure.savefig(file, format="png", dpi=_DPI, facecolor=PAGE)
        return file.getvalue()

    def _share(self, at: Box) -> tuple[float, float, float, float]:
        return (
            at.left / self._width,
            1 - (at.top + at.height) / self._height,
            at.width / self._width,
            at.height / self._height,
        )
