"""Numbers with their unit, as Grafana writes them; and the ticks of an axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from matplotlib.ticker import Locator, MaxNLocator, MultipleLocator

_SHORT: Final = ("", " K", " Mil", " Bil", " Tri", " Quadr")
_COUNTED: Final = ("", " K", " M", " B", " T", " Q")
_RATES: Final = {"ops": "ops/s", "reqps": "req/s", "cpm": "c/m"}
_PARTS: Final = ((1e-6, 1e9, "ns"), (1e-3, 1e6, "µs"), (1.0, 1e3, "ms"), (60.0, 1.0, "s"))
"""Of a second: below which it is used, what to multiply by, its name."""
_WHOLES: Final = (
    (3600.0, 60.0, "min"),
    (86400.0, 3600.0, "hour"),
    (604800.0, 86400.0, "day"),
    (math.inf, 604800.0, "week"),
)
"""Below which it is used, its seconds, its name."""
_NICE_SECONDS: Final = (*(60.0 * n for n in (0.5, 1, 2, 5, 10, 15, 30)), *(3600.0 * n for n in (1, 2, 3, 6, 12, 24)))

UNITS: Final = frozenset({"short", "percentunit", "s", *_RATES})
"""Grafana's names of the units that are known here."""


def text_of(value: float, unit: str, decimals: int | None = None, *, bare: bool = False) -> str:
    """Return a number with its unit: three digits that count, or `decimals` of them after the point.

    `bare`: without zeros at the end, as on an axis. `ValueError` for a unit that is not known.
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
    """Return the values that an axis from `low` to `high` is marked at: `most` steps between them at most.

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
