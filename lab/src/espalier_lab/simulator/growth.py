"""Jobs of a trace that grow into lent GPUs, and their gain in accuracy, from outcome tables.

A growing job trains for its time budget, its duration in the trace, with the GPUs that it asked for. An additional lent
GPU does not make it faster: it lets the job decide where to grow, once per epoch. The gain is the accuracy of the best
sequence of this many decisions, followed by "do nothing", minus the accuracy of doing nothing: best by all seeds of a
table but one, with the accuracy of that one, averaged over the seeds. Tables exist for some fractions of the budget at
the first loan; between two of them the gain is interpolated, and it falls to 0 from the last one to the end.
"""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

from espalier_core.types.measurements import Bid, BidUse
from espalier_core.types.outcomes import OutcomeTable, SequenceOutcome
from espalier_lab.simulator.jobs import FixedJob

_NOTHING: Final = Bid(use=BidUse.NOTHING, workers=1, gain=0, low=0, high=0, seconds=0)
GROWTH_WORKERS: Final = 1
"""Maximum number of workers lent to a growing job: one is enough to decide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowthCurve:
    """The gain of a model by growing; see above."""

    model: str
    moments: tuple[float, ...]
    """Fractions of the time budget at the first loan, ascending."""
    gains: tuple[tuple[float, ...], ...]
    """For each moment: the accuracy gained by 0, 1, ... decisions."""
    waits: tuple[float, ...]
    """For each decision: its time after the first loan, for a job with permanently lent GPUs, over the budget."""
    forecasts: tuple[tuple[float, ...], ...] = ()
    """Gains known beforehand: the accuracies by which the sequence was chosen. Empty: as `gains`."""
    lacks: float = 1.0
    """What the model lacks of a perfect accuracy if it does not grow: the unit of its bids."""

    def gain(self, moment: float, decisions: int) -> float:
        """Return the accuracy gained by this many decisions, with the first loan at the fraction `moment`."""
        return self._between(self.gains, moment, decisions)

    def forecast(self, moment: float, decisions: int) -> float:
        """Return the gain as known beforehand."""
        return self._between(self.forecasts or self.gains, moment, decisions)

    @property
    def fruitless(self) -> GrowthCurve:
        """The curve of a model that decides like this one, and gains nothing."""
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
        """Return the number of decisions of a job to which GPUs were lent for this time, over the budget."""
        return bisect_right(self.waits, lent)


def growth_curve(tables: Iterable[OutcomeTable]) -> GrowthCurve:
    """Return the curve of a model from its tables. Raise `ValueError` for tables without separate seeds."""
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
        lacks=statistics.fmean(1 - statistics.fmean(_still(table).accuracies or (0.0,)) for table in ordered),
    )


def growth_curves(tables: Iterable[OutcomeTable]) -> dict[str, GrowthCurve]:
    """Return the curves by model, from all tables with several seeds."""
    known = sorted((table for table in tables if _seeds(table) > 1), key=lambda table: table.model)
    return {model: growth_curve(group) for model, group in groupby(known, key=lambda table: table.model)}


class GrowingJob(FixedJob):
    """A job that runs for its time budget, and grows while GPUs are lent to it."""

    def __init__(
        self, name: str, submitted_at: float, workers: int, duration: float, curve: GrowthCurve, error: float = 0.0
    ) -> None:
        """Take the job, its curve, and the error of its forecast gain in accuracy."""
        super().__init__(name, submitted_at, workers, duration)
        self.curve, self._error = curve, error
        self.least_workers = workers
        self.most_workers = workers + GROWTH_WORKERS
        self.first_lent_at: float | None = None
        """The used fraction of its budget when GPUs were first lent to it."""
        self.lent_seconds = 0.0
        """Seconds of training with lent GPUs."""

    @property
    def decisions(self) -> int:
        """Number of decisions made."""
        return self.curve.decisions(self.lent_seconds / self._duration)

    @property
    def accuracy_gained(self) -> float:
        """Accuracy gained by growing, compared with not growing."""
        return 0.0 if self.first_lent_at is None else self.curve.gain(self.first_lent_at, self.decisions)

    @property
    def bids(self) -> tuple[Bid, ...]:
        """The worth of a loan from now on, up to the decision at which it gains most per second.

        The waiting time for a decision counts.
        """
        moment = 1 - self._left / self._duration if self.first_lent_at is None else self.first_lent_at
        made, lent = self.decisions, self.lent_seconds / self._duration
        waits = [(wait - lent) * self._duration for wait in self.curve.waits[made:]]
        now = self.curve.forecast(moment, made)
        # One forecast has one error, for all of its remaining decisions.
        off = self._error * (len(self.curve.waits) - made) / len(self.curve.waits)
        found = [
            self._bid(self.curve.forecast(moment, made + more) - now + off, seconds)
            for more, seconds in enumerate(waits, 1)
            if seconds < self._left
        ]
        return (*sorted(found, key=lambda bid: -bid.rate)[:1], _NOTHING)

    def _bid(self, gain: float, seconds: float) -> Bid:
        share = max(-1.0, min(1.0, gain / self.curve.lacks))
        return Bid(use=BidUse.GROWTH, workers=self.most_workers, gain=share, low=share, high=share, seconds=seconds)

    def place(self, placement: tuple[int, ...]) -> None:
        """Give it these workers; loans begin and end without a restart."""
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
    """Return the mean accuracy gained by the growing ones of `jobs`; None if none grows."""
    gained = [job.accuracy_gained for job in jobs if isinstance(job, GrowingJob)]
    return statistics.fmean(gained) if gained else None


def lent_gpu_hours(jobs: Iterable[object]) -> float | None:
    """Return the mean training time with extra GPUs of the growing ones of `jobs`, in hours; None if none grows."""
    hours = [job.lent_seconds * GROWTH_WORKERS / 3600 for job in jobs if isinstance(job, GrowingJob)]
    return statistics.fmean(hours) if hours else None


def _seeds(table: OutcomeTable) -> int:
    return min(len(each.accuracies or ()) for each in table.sequences)


def _gains(table: OutcomeTable) -> list[tuple[float, float]]:
    """Return the accuracy gained by 0, 1, ... decisions, and the gain for the seeds that chose the sequence."""
    seeds = range(_seeds(table))
    if len(seeds) < 2:
        raise ValueError(f"table {table.model} {table.scenario}: needs two seeds, one for choosing and one for judging")
    nothing, count = len(table.actions) - 1, table.decisions_per_episode
    still = _still(table)
    found = []
    for decisions in range(count + 1):
        grown = [each for each in table.sequences if set(each.actions[decisions:]) <= {nothing}]
        best = [max(grown, key=lambda each, seed=seed: _others(each, seed)) for seed in seeds]  # type: ignore[misc]
        gain = statistics.fmean(_of(each, seed) - _of(still, seed) for each, seed in zip(best, seeds, strict=True))
        known = (_others(each, seed) - _others(still, seed) for each, seed in zip(best, seeds, strict=True))
        found.append((gain, statistics.fmean(known)))
    return found


def _still(table: OutcomeTable) -> SequenceOutcome:
    """Return the outcome of doing nothing."""
    nothing = len(table.actions) - 1
    return next(each for each in table.sequences if set(each.actions) == {nothing})


def _others(outcome: SequenceOutcome, seed: int) -> float:
    """Return the mean accuracy with all seeds but `seed`."""
    accuracies = outcome.accuracies or ()
    return (sum(accuracies) - accuracies[seed]) / (len(accuracies) - 1)


def _of(outcome: SequenceOutcome, seed: int) -> float:
    return (outcome.accuracies or ())[seed]
