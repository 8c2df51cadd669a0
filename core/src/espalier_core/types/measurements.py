"""Measurements of a job by its trainer: durations of steps, gradient noise, and the loss curve.

The leader reports them, the operator keeps them in the job's status, and scheduling policies use them. Every list is
bounded, whatever its writer.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Final

from pydantic import Field

from espalier_core.base import MAX_NUMBER, YEAR_SECONDS, Record

MAX_CONFIGURATIONS: Final = 16
"""Maximum number of entries of `measurements.speeds`; the newest are kept."""
MAX_LOSS_POINTS: Final = 64
"""Maximum number of points of `measurements.losses`; beyond it, pairs of points are merged."""
MAX_SCORES: Final = 32
"""Maximum number of points of `measurements.scores`; beyond it, every other point is left out."""
MAX_BIDS: Final = 12
"""Maximum number of entries of `measurements.bids`."""


class Configuration(Record):
    """The parameters on which the duration of a step depends."""

    nodes: int = Field(ge=1, le=MAX_NUMBER)
    """Nodes on which the workers run."""
    workers: int = Field(ge=1, le=MAX_NUMBER)
    """Workers that train together."""
    batch_size: int = Field(ge=1, le=MAX_NUMBER)
    """Examples of one worker in a step."""
    parameters: int = Field(ge=0, le=MAX_NUMBER)
    """Trainable parameters of the model: one that has grown is slower."""
    gpu_type: str = Field(default="", max_length=63)
    """The type of GPU of the leader, the value of its node's label; empty if unknown."""
    passes: int = Field(default=1, ge=1, le=MAX_NUMBER)
    """Parts in which a worker computes its examples one after the other, to save memory."""


class Speed(Configuration):
    """The duration of a step in one configuration: medians of its latest steps, without the steps after a change."""

    steps: int = Field(ge=1, le=MAX_NUMBER)
    """Steps that were measured."""
    step_seconds: float = Field(gt=0, le=YEAR_SECONDS)
    """Duration of a step, from its beginning to the end of the optimizer's step."""
    sync_seconds: float = Field(ge=0, le=YEAR_SECONDS)
    """The part of it in which gradients are exchanged, without the wait for slower workers."""


class GradientNoise(Record):
    """Variation of gradients from batch to batch (McCandlish et al. 2018, arXiv:1812.06162, appendix A.1)."""

    squared_norm: float = Field(ge=0)
    """Estimated squared norm of the true gradient; 0 where the noise hides it."""
    variance: float = Field(ge=0)
    """Estimated trace of the covariance of the gradient of one example."""
    samples: int = Field(ge=1, le=MAX_NUMBER)
    """Number of estimates in these moving averages."""

    @property
    def noise_scale(self) -> float | None:
        """Examples in a batch at which noise and gradient are equally large; None where the noise hides the latter."""
        scale = self.variance / self.squared_norm if self.squared_norm > 0 else float("inf")
        return scale if scale < float("inf") else None


class LossPoint(Record):
    """The mean loss of the steps from `step` to the next point."""

    epoch: int = Field(ge=0, le=MAX_NUMBER)
    """Epoch of that first step."""
    step: int = Field(ge=0, le=MAX_NUMBER)
    """The first step of the point."""
    loss: float
    """Mean training loss."""


class GrowthForecast(Record):
    """Expected gain of growing once more, by the job's agent, if extra workers were lent from then on."""

    gain: float = Field(ge=-1, le=1)
    """Final accuracy gained (of another task, its score as a number between 0 and 1); 0 where the agent would advise
    nothing, and once the job may not grow any more."""
    low: float = Field(ge=-1, le=1)
    """Lower end of the interval that contains four of five estimates."""
    high: float = Field(ge=-1, le=1)
    """Upper end of that interval."""
    seconds: float = Field(ge=0, le=YEAR_SECONDS)
    """Seconds for which extra workers are needed until the model has grown: to the end of an epoch, and for trials."""


class ScorePoint(Record):
    """The score at an evaluation on the validation split."""

    work: float = Field(gt=0, le=MAX_NUMBER)
    """Epochs trained by then, whatever the number of workers."""
    value: float
    """Value of the job's measure."""


class BidUse(StrEnum):
    """A use of a job's next GPU, that of an extra worker."""

    WORKER = "Worker"
    """It trains with the others."""
    GROWTH = "Growth"
    """The model grows; the GPU is needed until then."""
    TRIAL = "Trial"
    """It tries growths, of which the model then takes the best, or none."""
    NOTHING = "Nothing"
    """None. The entry says that it is known what growing would gain."""


class Bid(Record):
    """The worth of one more GPU to a job, for one use (docs/spare-gpu.md)."""

    use: BidUse
    """The use."""
    workers: int = Field(ge=1, le=MAX_NUMBER)
    """Number of the job's workers with it: for `Worker` there is a bid for each number."""
    gain: float = Field(ge=-1, le=1)
    """Expected gain in the final measure, divided by what the job will lack of a perfect one without spare GPUs."""
    low: float = Field(ge=-1, le=1)
    """Lower end of the interval of four in five of the curves, or estimates, that are likely; single runs vary more."""
    high: float = Field(ge=-1, le=1)
    """Upper end of that interval."""
    seconds: float = Field(ge=0, le=YEAR_SECONDS)
    """Seconds for which the GPU is needed."""

    @property
    def rate(self) -> float:
        """Gain per second of the loan; divided by the GPUs of a worker, it is what bids are compared by."""
        return self.gain / max(1.0, self.seconds)


class Measurements(Record):
    """All measurements of a job, and the expectation of its agent."""

    speeds: tuple[Speed, ...] = Field(default=(), max_length=MAX_CONFIGURATIONS)
    """Speeds, one per configuration; the one used last comes last."""
    gradient: GradientNoise | None = None
    losses: tuple[LossPoint, ...] = Field(default=(), max_length=MAX_LOSS_POINTS)
    """The training loss from the first step on, at equal distances."""
    growth: GrowthForecast | None = None
    """The newest forecast; None where the agent has not been asked, or does not give one."""
    scores: tuple[ScorePoint, ...] = Field(default=(), max_length=MAX_SCORES)
    """The scores of evaluations, the newest last."""
    bids: tuple[Bid, ...] = Field(default=(), max_length=MAX_BIDS)
    """The worth of the next GPUs by use; empty: not known yet."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing was measured or forecast."""
        return not (self.speeds or self.gradient or self.losses or self.growth or self.scores or self.bids)


def configuration_of(speed: Speed) -> tuple[int, int, int, int, int, str]:
    """Return the key that distinguishes configurations."""
    return speed.nodes, speed.workers, speed.batch_size, speed.parameters, speed.passes, speed.gpu_type


def has_new_configuration(before: Measurements, after: Measurements) -> bool:
    """Return whether a configuration was measured, or growth forecast or a GPU bid for, for the first time, or the
    forecast gain, or the gain by any GPU, has become 0 or positive again; policies may then decide otherwise at once.
    """
    known = set(map(configuration_of, before.speeds))
    if any(configuration_of(speed) not in known for speed in after.speeds):
        return True
    if bool(before.bids) != bool(after.bids) or (wants_more(before.bids) != wants_more(after.bids)):
        return True
    return after.growth is not None and (before.growth is None or (before.growth.gain > 0) != (after.growth.gain > 0))


def wants_more(bids: Iterable[Bid]) -> bool:
    """Return whether any use of a GPU is worth more than nothing."""
    return any(bid.gain > 0 for bid in bids)


def merged(before: Measurements, after: Measurements) -> Measurements:
    """Return the measurements of a job after a report with `after`: the newest figures of each configuration.

    A leader that starts has measured nothing yet, and knows about earlier leaders only what its checkpoint says.
    """
    measured = {configuration_of(speed) for speed in after.speeds}
    earlier = (speed for speed in before.speeds if configuration_of(speed) not in measured)
    return Measurements(
        speeds=(*earlier, *after.speeds)[-MAX_CONFIGURATIONS:],
        gradient=after.gradient or before.gradient,
        losses=after.losses or before.losses,
        growth=after.growth or before.growth,
        scores=after.scores or before.scores,
        bids=after.bids or before.bids,
    )


def differs(before: Measurements, after: Measurements, share: float) -> bool:
    """Return whether a figure differs by more than `share` of itself, so that it is worth writing."""
    if [*map(configuration_of, before.speeds)] != [*map(configuration_of, after.speeds)]:
        return True
    if (before.gradient is None) != (after.gradient is None) or (before.growth is None) != (after.growth is None):
        return True
    if [(bid.use, bid.workers) for bid in before.bids] != [(bid.use, bid.workers) for bid in after.bids]:
        return True
    return any(abs(new - old) > share * max(abs(new), abs(old)) for old, new in _figures(before, after))


def _figures(before: Measurements, after: Measurements) -> Iterable[tuple[float, float]]:
    for old, new in zip(before.speeds, after.speeds, strict=True):
        yield old.step_seconds, new.step_seconds
        # A time far below the duration of the step does not matter, however much it varies.
        yield old.step_seconds + old.sync_seconds, old.step_seconds + new.sync_seconds
    if before.gradient is not None and after.gradient is not None:
        yield before.gradient.squared_norm, after.gradient.squared_norm
        yield before.gradient.variance, after.gradient.variance
    if before.growth is not None and after.growth is not None:
        yield before.growth.gain, after.growth.gain
        yield before.growth.seconds, after.growth.seconds
    for bid, now in zip(before.bids, after.bids, strict=True):
        yield bid.rate, now.rate
    yield (before.losses[-1].step if before.losses else 0, after.losses[-1].step if after.losses else 0)
