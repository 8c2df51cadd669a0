"""Uncertainty of the mean of some values: 95 % intervals by Student's t."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Final, NamedTuple

_LEVEL: Final = 0.95


class Interval(NamedTuple):
    """A mean with its 95 % interval; without one for a single value."""

    mean: float
    low: float | None
    high: float | None

    @classmethod
    def of(cls, values: Sequence[float], comparisons: int = 1) -> Interval:
        """Return the interval of the mean of `values`, which were chosen among this many `comparisons`."""
        mean, half = statistics.fmean(values), half_width(values, comparisons)
        return cls(mean, mean - half, mean + half) if math.isfinite(half) else cls(mean, None, None)


def half_width(values: Sequence[float], comparisons: int = 1) -> float:
    """Return half the width of the mean's 95 % interval; infinite for fewer than two values.

    With several comparisons, all their intervals together hold with 95 % (Bonferroni; Dunn, "Multiple Comparisons Among
    Means", JASA 56, 1961), and so does that of one of them which was chosen by the values.
    """
    if len(values) < 2:
        return math.inf
    from scipy.special import stdtrit  # takes a moment to import

    quantile = float(stdtrit(len(values) - 1, 1 - (1 - _LEVEL) / (2 * comparisons)))
    return quantile * statistics.stdev(values) / math.sqrt(len(values))
