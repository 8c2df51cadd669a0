"""Statistics over seeds and requests; intervals are 95 % (Student's t)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from espalier_lab.intervals import half_width


@dataclass(frozen=True, slots=True)
class Paired:
    """The mean of paired differences, and how sure it is."""

    mean: float
    low: float
    high: float
    """The interval of the mean; infinite for fewer than two differences."""
    wins: int
    count: int

    def __str__(self) -> str:
        """Return the mean with its interval."""
        return self.text()

    def text(self, form: str = "+.3f") -> str:
        """Return the mean with its interval, in this format."""
        return f"{self.mean:{form}} ({self.low:{form}}, {self.high:{form}})"

    @property
    def cell(self) -> str:
        """The text for a cell of a table: bold where the interval excludes 0."""
        return f"**{self}**" if self.low > 0 or self.high < 0 else str(self)


def paired(differences: Sequence[float]) -> Paired:
    """Return the mean of `differences` with its interval."""
    mean, half = statistics.fmean(differences), half_width(differences)
    return Paired(mean, mean - half, mean + half, sum(each > 0 for each in differences), len(differences))


def saved(ours: Iterable[float], theirs: Iterable[float]) -> Paired:
    """Return by how many percent `ours` are below `theirs`, pair by pair."""
    return paired([100 * (1 - float(one) / float(other)) for one, other in zip(ours, theirs, strict=True)])


def error_bars(found: Sequence[Paired]) -> list[list[float]]:
    """Return the intervals as `errorbar` of matplotlib expects them: distances below and above the means."""
    return [[each.mean - each.low for each in found], [each.high - each.mean for each in found]]


def mean_and_deviation(values: Sequence[float]) -> str:
    """Return `mean ± standard deviation`."""
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.fmean(values):.3f} ± {deviation:.3f}"


def interval(values: Sequence[float], places: int = 3) -> str:
    """Return `mean ± half of the interval`, the mean alone of one value."""
    half = half_width(values)
    return f"{statistics.fmean(values):.{places}f}" + (f" ± {half:.{places}f}" if math.isfinite(half) else "")


def median_and_range(values: Sequence[float]) -> str:
    """Return `median (smallest to largest)`."""
    return f"{statistics.median(values):,.0f} ({min(values):,.0f} to {max(values):,.0f})"


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return the mean, half the width of its interval (0 for one value), and n."""
    half = half_width(values) if len(values) > 1 else 0.0
    return {"mean": statistics.fmean(values), "half_width": half, "n": len(values)}


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least `share` of the values do not exceed (nearest rank)."""
    return sorted(values)[max(0, math.ceil(len(values) * share) - 1)]
