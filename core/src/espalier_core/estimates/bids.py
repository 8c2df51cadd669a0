"""Bids: the worth of the next spare GPU to a job, for each use of it (docs/spare-gpu.md). Pure.

The unit of a bid is a share of what the job can still gain: the gain in its final measure, divided by what the final
model lacks of a perfect one (accuracy 1, R² 1, 0 bits per character) if nothing is lent. What a job lacks is called its
error here. The learning curve is a power law with a floor, error(w) = c + a × w^−α after w epochs (Hestness et al.
2017, arXiv:1712.00409; Viering and Loog 2022, arXiv:2103.10948). Many curves fit a few noisy points about as well, so
all curves of a grid are kept, weighted by their likelihood, and intervals are quantiles over them.

- Another worker: the curve, further out. For the rest of the budget, n workers train speedup(n) times as much.
- A growth: the agent's forecast.
- A trial of growths, with d the error of its evidence and s the deviation of the forecast g: its expected result if the
  model grows only where the trial says so (`espalier_core.estimates.trial_worth`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Final

from espalier_core.estimates.gains import INTERVAL
from espalier_core.estimates.goodput import WorkSpeed
from espalier_core.estimates.trial_worth import expected_best, preposterior
from espalier_core.types.measurements import MAX_BIDS, Bid, BidUse, GrowthForecast, ScorePoint
from espalier_core.types.task import BITS_PER_CHARACTER, MIN_QUALITY, Measure

LEAST_POINTS: Final = 5
"""Minimum number of evaluations from which a curve is extrapolated."""
_EXPONENTS: Final = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.75, 0.9, 1.1, 1.4, 2.0)
_FLOORS: Final = (0.0, 0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 1.0)
"""Exponents α, and floors c as shares of the newest error, of the curves that are fitted."""
_WARM_UP: Final = 0.1
"""Points before this share of the work so far are left out: a power law begins after the first descent."""
_INDEPENDENT: Final = 0.5
"""Independent points for each point: errors of successive evaluations are alike."""
_LOW, _HIGH = 0.1, 0.9
_LEAST_ERROR: Final = 1e-3
"""Error below which a job has nothing to gain."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """An expected gain with the interval of four in five of the estimates that are likely.

    Unlike an `ExpectedGain` it may be no number, as after a run has diverged; a bid is bounded.
    """

    mean: float
    low: float
    high: float


def error_of(measure: Measure, value: float) -> float:
    """Return what a score lacks of a perfect one."""
    return max(0.0, 1 - value if measure.higher_is_better else value)


@dataclass(frozen=True, slots=True)
class LearningCurve:
    """The curves that fit a job's evaluations, with their weights, which sum to 1."""

    curves: tuple[tuple[float, float, float, float], ...]
    """Weight, floor c, factor a, exponent α."""

    def error(self, work: float) -> float:
        """Return the expected error after `work` epochs."""
        return math.fsum(weight * (floor + factor * work**-power) for weight, floor, factor, power in self.curves)

    def gain(self, fewer: float, more: float) -> Estimate:
        """Return by how much the error falls from `fewer` to `more` epochs."""
        found = sorted((factor * (fewer**-power - more**-power), weight) for weight, _, factor, power in self.curves)
        reached = list(accumulate(weight for _, weight in found))
        low, high = (
            next((gain for (gain, _), part in zip(found, reached, strict=True) if part >= share), found[-1][0])
            for share in (_LOW, _HIGH)
        )
        return Estimate(math.fsum(gain * weight for gain, weight in found), low, high)


def learning_curve(points: Sequence[ScorePoint], measure: Measure) -> LearningCurve | None:
    """Return the curve through the evaluations; None for fewer than `LEAST_POINTS` after the first descent."""
    last = points[-1].work if points else 0.0
    seen = [(point.work, error_of(measure, point.value)) for point in points if point.work >= _WARM_UP * last]
    if len(seen) < LEAST_POINTS:
        return None
    newest = math.fsum(error for _, error in seen[-3:]) / 3
    fits = [fit for power in _EXPONENTS for fit in _fits(seen, power, [share * newest for share in _FLOORS])]
    best = min(squares for squares, *_ in fits) + 1e-12
    weights = [((squares + 1e-12) / best) ** (-_INDEPENDENT * len(seen) / 2) for squares, *_ in fits]
    whole = math.fsum(weights)
    return LearningCurve(tuple((weight / whole, *fit[1:]) for weight, fit in zip(weights, fits, strict=True)))


def _fits(
    seen: Sequence[tuple[float, float]], power: float, floors: Sequence[float]
) -> Iterator[tuple[float, float, float, float]]:
    """Yield the sum of squared errors and the curve for each floor, with the factor of least squares, at least 0."""
    basis, errors = [work**-power for work, _ in seen], [error for _, error in seen]
    own = math.fsum(map(float.__mul__, basis, basis))
    for floor in floors:
        rest = [error - floor for error in errors]
        factor = max(0.0, math.fsum(map(float.__mul__, basis, rest)) / own)
        squares = math.fsum((value - factor * base) ** 2 for base, value in zip(basis, rest, strict=True))
        yield squares, floor, factor, power


def speedup_by(speed: WorkSpeed, nodes_per_worker: float) -> Callable[[int], float]:
    """Return the work per second by workers, relative to the base workers.

    Where each worker adds its examples to the batch, an example counts for less the larger the batch is, by the noise
    scale φ of gradients: (φ + m₀) / (φ + m), as in Pollux. Where φ is not known, examples count in full.
    """

    def seconds(workers: int) -> float:
        return speed.seconds(max(1, math.ceil(workers * nodes_per_worker)), workers)

    alone = seconds(speed.base)

    def speedup(workers: int) -> float:
        worth = 1.0
        if speed.scales_batch and speed.limits is None and speed.noise_scale is not None and speed.speeds:
            own = speed.speeds[-1].batch_size
            worth = (speed.noise_scale + speed.base * own) / (speed.noise_scale + workers * own)
        return worth * alone / seconds(workers)

    return speedup


@dataclass(frozen=True, slots=True, kw_only=True)
class Bidder:
    """The position of a job in its budget."""

    measure: Measure
    scores: tuple[ScorePoint, ...]
    work: float
    """Epochs trained so far."""
    seconds_left: float
    epoch_seconds: float
    """Seconds of an epoch with base workers alone; 0: unknown."""
    base: int
    most: int
    """Number of base workers, and the maximum of all."""
    tried: int = 1
    """The largest number of workers whose speed was measured."""
    speedup: Callable[[int], float] | None = None
    """Work per second with a number of workers, relative to the base workers; None: extra workers do not train."""
    forecast: GrowthForecast | None = None
    """The agent's forecast; None: unknown."""
    trial: float | None = None
    """Deviation of the error of a trial's evidence, in the job's measure; None: growths are not tried."""


def bids_of(job: Bidder) -> tuple[Bid, ...]:
    """Return the job's bids: for each number of workers, for a growth or a trial, and for nothing.

    Empty where nothing is known.
    """
    curve = learning_curve(job.scores, job.measure)
    at_end = job.work + (job.seconds_left / job.epoch_seconds if job.epoch_seconds > 0 else 0.0)
    if curve is not None and at_end > 0:
        lacks = curve.error(at_end)
    else:
        lacks = error_of(job.measure, job.scores[-1].value) if job.scores else 0.0
    if job.seconds_left <= 0 or job.most <= job.base:
        return (_NOTHING,)
    lacks = max(_LEAST_ERROR, lacks)
    found = [] if curve is None or at_end <= job.work else [*_workers(job, curve, lacks)]
    if job.forecast is not None:
        if job.forecast.gain > 0 and job.scores:
            found.append(_growth(job, job.forecast, lacks))
        if job.forecast.gain <= 0 or job.scores:
            found.append(_NOTHING)
    return tuple(found)


def next_bids(bids: Iterable[Bid], workers: int) -> list[Bid]:
    """Return the bids for the next GPU of a job that has this many workers, the best first."""
    found = [bid for bid in bids if bid.use is not BidUse.WORKER or bid.workers == workers + 1]
    return sorted(found, key=lambda bid: -bid.rate)


_NOTHING: Final = Bid(use=BidUse.NOTHING, workers=1, gain=0, low=0, high=0, seconds=0)


def _workers(job: Bidder, curve: LearningCurve, lacks: float) -> Iterator[Bid]:
    if job.speedup is None:
        return
    alone = job.seconds_left / job.epoch_seconds
    for workers in range(job.base + 1, min(job.most, job.base + MAX_BIDS - 2) + 1):
        fewer, more = (job.work + alone * max(0.0, job.speedup(count)) for count in (workers - 1, workers))
        gain = curve.gain(fewer, more)
        if workers > job.tried:  # its speed is a guess
            gain = replace(gain, low=min(0.0, gain.low))
        yield _bid(BidUse.WORKER, workers, gain, lacks, job.seconds_left)


def _growth(job: Bidder, forecast: GrowthForecast, lacks: float) -> Bid:
    gain = Estimate(*(_in_measure(job, part) for part in (forecast.gain, forecast.low, forecast.high)))
    if job.trial is None:
        return _bid(BidUse.GROWTH, job.base + 1, gain, lacks, forecast.seconds)
    spread = max(0.0, gain.high - gain.low) / INTERVAL
    found = expected_best([(gain.mean, preposterior(spread, job.trial))])
    tried = Estimate(found, max(0.0, gain.low), max(0.0, gain.high))
    return _bid(BidUse.TRIAL, job.base + 1, tried, lacks, forecast.seconds)


def _in_measure(job: Bidder, gain: float) -> float:
    """Return a gain of a score's quality in the job's measure: bits per character follow from 2^-bits."""
    if job.measure is not BITS_PER_CHARACTER:
        return gain
    now = max(MIN_QUALITY, 2 ** -job.scores[-1].value)
    return math.log2(max(MIN_QUALITY, now + gain) / now)


def _bid(use: BidUse, workers: int, gain: Estimate, lacks: float, seconds: float) -> Bid:
    mean, low, high = (max(-1.0, min(1.0, part / lacks)) for part in (gain.mean, gain.low, gain.high))
    return Bid(use=use, workers=workers, gain=mean, low=min(low, mean), high=max(high, mean), seconds=seconds)
