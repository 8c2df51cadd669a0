"""A sheet of pixels to draw on, from the upper left: text, boxes, axes; and numbers in Grafana's notation."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import FancyBboxPatch
from matplotlib.ticker import Locator, MaxNLocator, MultipleLocator

_SHORT: Final = ("", " K", " Mil", " Bil", " Tri", " Quadr")
_COUNTED: Final = ("", " K", " M", " B", " T", " Q")
_RATES: Final = {"ops": "ops/s", "reqps": "req/s", "cpm": "c/m"}
_PARTS: Final = ((1e-6, 1e9, "ns"), (1e-3, 1e6, "µs"), (1.0, 1e3, "ms"), (60.0, 1.0, "s"))
"""Units of less than a minute: upper limit in seconds, factor, name."""
_WHOLES: Final = (
    (3600.0, 60.0, "min"),
    (86400.0, 3600.0, "hour"),
    (604800.0, 86400.0, "day"),
    (math.inf, 604800.0, "week"),
)
"""Units from a minute on: upper limit in seconds, seconds of one, name."""
_NICE_SECONDS: Final = (*(60.0 * n for n in (0.5, 1, 2, 5, 10, 15, 30)), *(3600.0 * n for n in (1, 2, 3, 6, 12, 24)))

UNITS: Final = frozenset({"short", "percentunit", "s", *_RATES})
"""Grafana's names of the supported units."""
PAGE, PAPER, EDGE, INK, MUTED, GRID = "#f3f4f6", "#ffffff", "#e2e5ea", "#24313f", "#6b7785", "#eceff3"
_DPI: Final = 100


def text_of(value: float, unit: str, decimals: int | None = None, *, bare: bool = False) -> str:
    """Return a number with its unit: three significant digits, or `decimals` digits after the point.

    `bare`: without trailing zeros, as on an axis. Raise `ValueError` for an unknown unit.
    """
    if unit not in UNITS:
        raise ValueError(f"unit {unit!r} is not known here; known: {', '.join(sorted(UNITS))}")
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else f"{'-' if value < 0 else ''}∞"
    if unit == "percentunit":
        return f"{_digits(100 * value, decimals, bare)}%"
    if unit == "s":
        return _seconds(value, decimals, bare)
    number, power = value, 0
    while abs(float(_digits(number, decimals, bare))) >= 1000 and power + 1 < len(_SHORT):
        number, power = number / 1000, power + 1
    if unit == "short":
        return f"{_digits(number, decimals, bare)}{_SHORT[power]}"
    return f"{_digits(number, decimals, bare)}{_COUNTED[power]} {_RATES[unit]}"


def ticks(low: float, high: float, unit: str, most: int = 5, *, whole: bool = False) -> Sequence[float]:
    """Return the values of the ticks on an axis from `low` to `high`, with at most `most` steps between them.

    `whole`: only whole numbers.
    """
    least = (high - low) / most
    locator: Locator
    if unit == "s" and _NICE_SECONDS[0] <= least <= _NICE_SECONDS[-1]:
        locator = MultipleLocator(next(step for step in _NICE_SECONDS if step >= least))
    else:
        locator = MaxNLocator(most, steps=(1, 2, 2.5, 5, 10), integer=whole, min_n_ticks=1)
    room = 1e-9 * (high - low)
    found = [float(tick) for tick in locator.tick_values(low, high) if low - room <= tick <= high + room]
    return [tick for tick in found if not whole or tick == round(tick)]


def _seconds(value: float, decimals: int | None, bare: bool) -> str:
    size = abs(value)
    if size == 0:
        return "0 s"
    for below, factor, name in _PARTS:
        if size < below:
            return f"{_digits(value * factor, decimals, bare)} {name}"
    seconds, name = next((seconds, name) for below, seconds, name in _WHOLES if size < below)
    number = _digits(value / seconds, decimals, bare)
    return f"{number} {name}{'' if abs(float(number)) == 1 else 's'}"


def _digits(value: float, decimals: int | None, bare: bool) -> str:
    if decimals is None:
        whole = value == math.trunc(value)
        decimals = 0 if whole else max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:.{decimals}f}"
    if bare and "." in text:
        text = text.rstrip("0").rstrip(".")
    return "0" if text in ("-0", "-0.0") or (value == 0 and bare) else text


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle in pixels; `top` is counted from the top of the sheet."""

    left: float
    top: float
    width: float
    height: float

    def within(self, left: float, top: float, right: float, bottom: float) -> Box:
        """Return the box inside these margins."""
        return Box(self.left + left, self.top + top, self.width - left - right, self.height - top - bottom)


class Canvas:
    """One sheet."""

    def __init__(self, width: int, height: int) -> None:
        """Create a blank sheet."""
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
        """Write one line; `middle` is the height of its middle. Mathematical notation has no effect.

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
        """Return the width of a text in pixels."""
        font = FontProperties(size=size, weight="bold" if bold else "normal")
        return float(self._renderer.get_text_width_height_descent(text, font, False)[0])

    def png(self) -> bytes:
        """Return the picture."""
        file = io.BytesIO()
        self._figure.savefig(file, format="png", dpi=_DPI, facecolor=PAGE)
        return file.getvalue()
