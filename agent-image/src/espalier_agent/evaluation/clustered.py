"""How sure a mean is whose values come in groups: decisions of one job resemble each other. Pure.

The agent's image has no scipy, so the quantile is found here.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

_LEVEL: Final = 0.95


def clustered_interval(values: Sequence[float], groups: Sequence[str]) -> tuple[float, float] | None:
    """Return the 95 % interval of the mean of `values`, each of one of the `groups`; None for fewer than two groups.

    The variance sums residuals within a group first, and the interval is by Student's t with one degree of freedom less
    than there are groups (Cameron and Miller, "A Practitioner's Guide to Cluster-Robust Inference", Journal of Human
    Resources 50, 2015). Where each group has one value, it is the usual interval.
    """
    count = len(set(groups))
    if count < 2:
        return None
    mean = math.fsum(values) / len(values)
    residuals: dict[str, list[float]] = defaultdict(list)
    for value, group in zip(values, groups, strict=True):
        residuals[group].append(value - mean)
    squares = math.fsum(math.fsum(each) ** 2 for each in residuals.values())
    half = student_quantile(count - 1) * math.sqrt(count / (count - 1) * squares) / len(values)
    return mean - half, mean + half


def student_quantile(degrees: int) -> float:
    """Return what a Student's t variable with these degrees of freedom exceeds in absolute value with 5 %."""
    low, high = 0.0, math.pi / 2  # of the angle atan(t / sqrt(degrees))
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, degrees) < _LEVEL else (low, middle)
    return math.sqrt(degrees) * math.tan(high)


def _within(angle: float, degrees: int) -> float:
    """Return the probability of |t| < sqrt(degrees) * tan(angle): Abramowitz and Stegun, 26.7.3 and 26.7.4."""
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = degrees % 2
    term, total = cosine if odd else 1.0, 0.0
    for power in range(odd, degrees - 1, 2):
        total += term
        term *= cosine**2 * (power + 1) / (power + 2)
    return 2 / math.pi * (angle + sine * total) if odd else sine * total
