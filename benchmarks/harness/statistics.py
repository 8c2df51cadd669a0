"""Statistics over seeds and requests."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from espalier_lab.intervals import half_width


@dataclass(frozen=True, slots=True)
class Paired:
    """The mean of paired differences, and how sure it is."""

    mean: float
    low: float
    high: float
    """95 % interval of the mean (Student's t over the differences); infinite for fewer than two."""
    wins: int
    count: int

    def __str__(self) -> str:
        """Return the mean with its interval."""
        return f"{self.mean:+.3f} ({self.low:+.3f}, {self.high:+.3f})"

    @property
    def cell(self) -> str:
        """The text for a cell of a table: bold where the interval excludes 0."""
        return f"**{self}**" if self.low > 0 or self.high < 0 else str(self)


def paired(differences: Sequence[float]) -> Paired:
    """Return the mean of `differences` with its interval."""
    mean, half = statistics.fmean(differences), half_width(differences)
    return Paired(mean, mean - half, mean + half, sum(each > 0 for each in differences), len(differences))


def error_bars(found: Sequence[Paired]) -> list[list[float]]:
    """Return the intervals as `errorbar` of matplotlib expects them: distances below and above the means."""
    return [[each.mean - each.low for each in found], [each.high - each.mean for each in found]]


def mean_and_deviation(values: Sequence[float]) -> str:
    """Return `mean ± standard deviation`."""
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.fmean(values):.3f} ± {deviation:.3f}"


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return the mean, half the width of its 95 % interval (0 for one value), and n."""
    half = half_width(values) if len(values) > 1 else 0.0
    return {"mean": statistics.fmean(values), "half_width": half, "n": len(values)}


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least `share` of the values do not exceed (nearest rank)."""
    return sorted(values)[max(0, math.ceil(len(values) * share) - 1)]
