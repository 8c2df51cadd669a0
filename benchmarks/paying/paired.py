"""Differences of two arms, seed by seed."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scipy import stats


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
        """Say it in a cell of a table: bold where the interval has no zero in it."""
        cell = f"{self.mean:+.3f} ({self.low:+.3f} to {self.high:+.3f})"
        return f"**{cell}**" if self.low > 0 or self.high < 0 else cell


def paired(differences: Sequence[float]) -> Paired:
    """Return the mean of `differences` with its interval."""
    mean, count = statistics.fmean(differences), len(differences)
    wins = sum(difference > 0 for difference in differences)
    if count < 2:
        return Paired(mean, float("-inf"), float("inf"), wins, count)
    reach = float(stats.t.ppf(0.975, count - 1)) * statistics.stdev(differences) / count**0.5
    return Paired(mean, mean - reach, mean + reach, wins, count)
