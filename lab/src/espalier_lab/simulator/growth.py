"""Jobs of a trace that grow into lent GPUs, and the accuracy that this gains them, from outcome tables.

A growing job trains for its time budget, its duration in the trace, with the GPUs that it asked for. A GPU more that is
lent to it makes it no faster: it lets the job decide where to grow, once an epoch. What that gains is the accuracy of
the best sequence of this many decisions, then "do nothing", less that of doing nothing at all: best by all seeds of a
table but one, by the accuracy of that one, on average over the seeds. Tables are of some fractions of the budget at the
first loan; between two of them the gain is interpolated, and it falls to 0 from the last one to the end.
"""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

from espalier_core.types.outcomes import OutcomeTable, SequenceOutcome
from espalier_lab.simulator.jobs import FixedJob
from espalier_operator.policies.view import ExpectedGrowth

GROWTH_WORKERS: Final = 1
"""Workers that a growing job can be lent: one is enough to decide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowthCurve:
    """What a model gains by growing; see above."""

    model: str
    moments: tuple[float, ...]
    """Fractions of the time budget at the first loan; rising."""
    gains: tuple[tuple[float, ...], ...]
    """By moment: the accuracy gained by 0, 1, ... decisions."""
    waits: tuple[float, ...]
    """By decision: how long after its first loan a job has made it that is lent GPUs all the time, over the budget."""
    forecasts: tuple[tuple[float, ...], ...] = ()
    """As `gains`, but what is known before: the accuracies by which the sequence was chosen. Empty: as `gains`."""

    def gain(self, moment: float, decisions: int) -> float:
        """Return the accuracy gained by this many decisions, with the first loan at the fraction `moment`."""
        return self._between(self.gains, moment, decisions)

    def forecast(self, moment: float, decisions: int) -> float:
        """Return the same as far as it is known before."""
        return self._between(self.forecasts or self.gains, moment, decisions)

    @property
    def fruitless(self) -> GrowthCurve:
        """The curve of a model that decides as this one, and gains nothing."""
        return replace(self, gains=tuple((0.0,) * len(row) for row in self.gains), forecasts=())

    def _between(self, gains: Sequence[Sequence[float]], moment: float, decisions: int) -> float:
        points = [*zip(self.moments, (row[decisions] for row in gains), strict=True), (1.0, 0.0)]
        after = bisect_right([point for point, _ in points], moment)
        if not after:
            return points[0][1]
        if after == len(points):
            return 0.0
        (low, below), (high, above) = points[after - 1 : after + 1]
        return below + (above - below) * (moment - low) / (high - low)

    def decisions(self, lent: float) -> int:
        """Return how many decisions a job has made to which GPUs were lent for so long, over the budget."""
        return bisect_right(self.waits, lent)


def growth_curve(tables: Iterable[OutcomeTable]) -> GrowthCurve:
    """Return the curve of a model from its tables. Raises `ValueError` for tables that do not tell seeds apart."""
    ordered = sorted(tables, key=lambda table: table.adapt_from_s / table.time_budget_s)
    if not ordered or len({(table.model, table.decisions_per_episode) for table in ordered}) > 1:
        raise ValueError("a growth curve is made of tables of one model, with as many decisions each")
    waits = [
        [
            1 - (table.adapt_from_s + statistics.fmean(left)) / table.time_budget_s
            for table in ordered
            for left in [[each.time_left_s[place] for each in table.sequences]]
        ]
        for place in range(ordered[0].decisions_per_episode)
    ]
    judged = [_gains(table) for table in ordered]
    return GrowthCurve(
        model=ordered[0].model,
        moments=tuple(table.adapt_from_s / table.time_budget_s for table in ordered),
        gains=tuple(tuple(gain for gain, _ in row) for row in judged),
        forecasts=tuple(tuple(forecast for _, forecast in row) for row in judged),
        waits=tuple(max(0.0, statistics.fmean(each)) for each in waits),
    )


def growth_curves(tables: Iterable[OutcomeTable]) -> dict[str, GrowthCurve]:
    """Return the curves by model, of all tables that were collected with several seeds."""
    known = sorted((table for table in tables if _seeds(table) > 1), key=lambda table: table.model)
    return {model: growth_curve(group) for model, group in groupby(known, key=lambda table: table.model)}


class GrowingJob(FixedJob):
    """A job that runs for its time budget, and grows while GPUs are lent to it."""

    def __init__(
        self, name: str, submitted_at: float, workers: int, duration: float, curve: GrowthCurve, error: float = 0.0
    ) -> None:
        """Take the job, its curve, and by how much accuracy the forecast of its gain is off."""
        super().__init__(name, submitted_at, workers, duration)
        self.curve, self._error = curve, error
        self.least_workers = workers
        self.most_workers = workers + GROWTH_WORKERS
        self.first_lent_at: float | None = None
        """The fraction of its budget that was used when GPUs were first lent to it."""
        self.lent_seconds = 0.0
        """For how long it has trained with lent GPUs."""

    @property
    def decisions(self) -> int:
        """How many it has made."""
        return self.curve.decisions(self.lent_seconds / self._duration)

    @property
    def accuracy_gained(self) -> float:
        """By growing, compared with not growing."""
        return 0.0 if self.first_lent_at is None else self.curve.gain(self.first_lent_at, self.decisions)

    @property
    def expected_growth(self) -> ExpectedGrowth:
        """What growing is expected to gain it from now on, by decision; what it must wait for in time counts."""
        moment = 1 - self._left / self._duration if self.first_lent_at is None else self.first_lent_at
        made, lent = self.decisions, self.lent_seconds / self._duration
        waits = [(wait - lent) * self._duration for wait in self.curve.waits[made:]]
        ahead = [seconds for seconds in waits if seconds < self._left]
        now = self.curve.forecast(moment, made)
        gains = [self.curve.forecast(moment, made + more) - now for more in range(1, len(ahead) + 1)]
        # One forecast is off by one error, however many of its decisions are left.
        off = self._error * (len(self.curve.waits) - made) / len(self.curve.waits)
        return ExpectedGrowth(gains=tuple(gain + off for gain in gains), seconds=tuple(ahead))

    def place(self, placement: tuple[int, ...]) -> None:
        """Give it these workers; a loan comes and goes without a restart."""
        ran, pause, restarts = self.workers >= self.requested, self._pause, self.restarts
        super().place(placement)
        if ran and self.workers >= self.requested:
            self._pause, self.restarts = pause, restarts

    def _speed(self) -> float:
        return min(1.0, super()._speed())

    def _train(self, now: float, seconds: float) -> bool:
        before, made = self._left, self.decisions
        changed = super()._train(now, seconds)
        if self.workers > self.requested and before > 0:
            if self.first_lent_at is None:
                self.first_lent_at = 1 - before / self._duration
            self.lent_seconds += seconds if self.completed_at is None else self.completed_at - now
        return changed or self.decisions > made


def accuracy_gained(jobs: Iterable[object]) -> float | None:
    """Return the accuracy gained by those of `jobs` that grow, on average; None: none does."""
    gained = [job.accuracy_gained for job in jobs if isinstance(job, GrowingJob)]
    return statistics.fmean(gained) if gained else None


def lent_gpu_hours(jobs: Iterable[object]) -> float | None:
    """Return for how long extra GPUs trained with those of `jobs` that grow, on average; None: none does."""
    hours = [job.lent_seconds * GROWTH_WORKERS / 3600 for job in jobs if isinstance(job, GrowingJob)]
    return statistics.fmean(hours) if hours else None


def _seeds(table: OutcomeTable) -> int:
    return min(len(each.accuracies or ()) for each in table.sequences)


def _gains(table: OutcomeTable) -> list[tuple[float, float]]:
    """Return the accuracy gained by 0, 1, ... decisions, and that of the seeds by which their sequence was chosen."""
    seeds = range(_seeds(table))
    if len(seeds) < 2:
        raise ValueError(
            f"table {table.model} {table.scenario}: has no two seeds, one to choose by and one to judge by"
        )
    nothing, count = len(table.actions) - 1, table.decisions_per_episode
    still = next(each for each in table.sequences if set(each.actions) == {nothing})
    found = []
    for decisions in range(count + 1):
        grown = [each for each in table.sequences if set(each.actions[decisions:]) <= {nothing}]
        best = [max(grown, key=lambda each, seed=seed: _others(each, seed)) for seed in seeds]  # type: ignore[misc]
        gain = statistics.fmean(_of(each, seed) - _of(still, seed) for each, seed in zip(best, seeds, strict=True))
        known = (_others(each, seed) - _others(still, seed) for each, seed in zip(best, seeds, strict=True))
        found.append((gain, statistics.fmean(known)))
    return found


def _others(outcome: SequenceOutcome, seed: int) -> float:
    """Return the mean accuracy with all seeds but `seed`."""
    accuracies = outcome.accuracies or ()
    return (sum(accuracies) - accuracies[seed]) / (len(accuracies) - 1)


def _of(outcome: SequenceOutcome, seed: int) -> float:
    return (outcome.accuracies or ())[seed]
