"""The worth of a trial before it begins: what it may find out, less what it costs (`adaptation.trials: Auto`). Pure.

The gain of each growth is believed to be normal, and so is the error of a trial. Deciding after a trial instead of now
is then worth the expected value of sample information (Raiffa and Schlaifer, Applied Statistical Decision Theory, 1961,
5.5), which ranks measurements as the knowledge gradient does (Frazier, Powell and Dayanik, SIAM J. Control Optim. 47,
2008): with s the deviation of the mean that will be believed afterwards, s = prior² / √(prior² + error²), it is

    E[max(0, M_1, ..., M_n)] - max(0, m_1, ..., m_n),    M_i ~ N(m_i, s_i²).

Doing nothing gains 0. Errors of several growths are taken as independent, though they share the run of `Nothing`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from espalier_core.estimates.gains import SPREAD, Belief
from espalier_core.types.adaptation import Trials
from espalier_core.types.task import Task

PRICE: Final = 0.1
"""Worth of as many lent workers as the base has, for all of the remaining time, in `SPREAD`, for other uses.
A choice, not a measurement; `espalier agent judge` shows what `Auto` gains and lends with it."""
_STEPS: Final = 40
"""Steps of the numerical integral between two ends; it errs by less than 1e-4 of the deviation."""
_CERTAIN: Final = 1e-9
"""Deviation up to which a mean counts as certain: the ends of what it may be are then one number."""
_TAIL: Final = 8.0
"""Deviations beyond which nothing is expected."""


@dataclass(frozen=True, slots=True)
class TrialWorth:
    """The worth of a trial, in the task's measure."""

    kind: Trials
    workers: int
    """Number of extra workers on it."""
    information: float
    """Expected gain of deciding after the trial instead of now, less what is lost by growing later; may be negative."""
    cost: float
    """Worth of the lent workers that it takes."""

    @property
    def pays(self) -> bool:
        """Whether finding out is worth more than it costs."""
        return self.information > self.cost

    def __str__(self) -> str:
        on = f"{self.kind}, extra workers: {self.workers}"
        return f"a trial ({on}) is worth {self.information:.2g} and costs {self.cost:.2g}"


def trial_worth(
    kind: Trials, workers: int, growths: Sequence[Belief], task: Task, error: float, *, lent: float, delay: float
) -> TrialWorth:
    """Return the worth of a trial of some growths, whose gains it shows with a standard deviation of `error`.

    `lent` is the time of lent workers as a share of what the base trains in the remaining time, `delay` the share of
    that time by which growth is later, and with it the share of the gain that is lost.
    """
    after = expected_best([(each.mean, preposterior(each.deviation, error)) for each in growths])
    now = max((0.0, *(each.mean for each in growths)))
    return TrialWorth(kind, workers, (1 - delay) * after - now, PRICE * SPREAD[task] * lent)


def preposterior(prior: float, error: float) -> float:
    """Return the deviation of the mean that will be believed after a measurement; 0 if nothing can change it."""
    return prior * (prior / math.hypot(prior, error)) if prior > 0 else 0.0


def expected_best(means: Sequence[tuple[float, float]]) -> float:
    """Return E[max(0, M_1, ..., M_n)] for independent normal M_i, given as pairs of mean and deviation."""
    least = max((0.0, *(mean for mean, deviation in means if deviation <= _CERTAIN)))
    unsure = [(mean, deviation) for mean, deviation in means if deviation > _CERTAIN]
    if len(unsure) == 1:
        mean, deviation = unsure[0]
        u = (mean - least) / deviation
        return least + deviation * (u * _below(u) + math.exp(-u * u / 2) / math.sqrt(2 * math.pi))
    # The integral of P(max > x) from the least on, by Simpson's rule between the ends of what each may be.
    ends = (mean + sign * _TAIL * deviation for mean, deviation in unsure for sign in (-1, 0, 1))
    borders = [least, *sorted(end for end in ends if end > least)]
    return least + math.fsum(_integral(unsure, low, high) for low, high in itertools.pairwise(borders))


def _integral(unsure: Sequence[tuple[float, float]], low: float, high: float) -> float:
    step = (high - low) / _STEPS
    exceeds = [
        1 - math.prod(_below((low + number * step - mean) / deviation) for mean, deviation in unsure)
        for number in range(_STEPS + 1)
    ]
    return step / 3 * (exceeds[0] + 4 * math.fsum(exceeds[1::2]) + 2 * math.fsum(exceeds[2:-1:2]) + exceeds[-1])


def _below(u: float) -> float:
    return 0.5 * math.erfc(-u / math.sqrt(2))
