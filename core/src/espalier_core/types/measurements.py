"""Measurements of a job by its trainer: durations of steps, gradient noise, and the loss curve.

The leader reports it, the operator keeps it in the job's status, and scheduling policies decide by it. Every list is
bounded, whoever wrote it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pydantic import Field

from espalier_core.base import MAX_NUMBER, YEAR_SECONDS, Record

MAX_CONFIGURATIONS: Final = 16
"""How many of the newest entries `measurements.speeds` keeps."""
MAX_LOSS_POINTS: Final = 64
"""How many points `measurements.losses` has at most; where there are more, two become one."""


class Configuration(Record):
    """What the duration of a step depends on."""

    nodes: int = Field(ge=1, le=MAX_NUMBER)
    """Nodes that the workers are on."""
    workers: int = Field(ge=1, le=MAX_NUMBER)
    """Workers that train together."""
    batch_size: int = Field(ge=1, le=MAX_NUMBER)
    """Examples of one worker in a step."""
    parameters: int = Field(ge=0, le=MAX_NUMBER)
    """Trainable parameters of the model: one that has grown is slower."""
    gpu_type: str = Field(default="", max_length=63)
    """The type of GPU of the leader, the value of its node's label; empty where nobody says."""
    passes: int = Field(default=1, ge=1, le=MAX_NUMBER)
    """Parts of its examples that a worker computes one after the other, where its memory is too small for all."""


class Speed(Configuration):
    """The duration of a step in one configuration: medians of its latest steps, without those after a change."""

    steps: int = Field(ge=1, le=MAX_NUMBER)
    """Steps that were measured."""
    step_seconds: float = Field(gt=0, le=YEAR_SECONDS)
    """Duration of a step, from its beginning to the end of the optimizer's step."""
    sync_seconds: float = Field(ge=0, le=YEAR_SECONDS)
    """The part of it in which gradients are exchanged, without waiting for slower workers."""


class GradientNoise(Record):
    """How much gradients vary from batch to batch (McCandlish et al. 2018, arXiv:1812.06162, appendix A.1)."""

    squared_norm: float = Field(ge=0)
    """Squared norm of the true gradient, estimated; 0 where the noise hides it."""
    variance: float = Field(ge=0)
    """Trace of the covariance of the gradient of one example, estimated."""
    samples: int = Field(ge=1, le=MAX_NUMBER)
    """Estimates of which these are the moving averages."""

    @property
    def noise_scale(self) -> float | None:
        """Examples in a batch at which noise and gradient are equally large; None where the noise hides the latter."""
        scale = self.variance / self.squared_norm if self.squared_norm > 0 else float("inf")
        return scale if scale < float("inf") else None


class LossPoint(Record):
    """The mean loss of the steps from `step` to the next point."""

    epoch: int = Field(ge=0, le=MAX_NUMBER)
    """The epoch of the first of them."""
    step: int = Field(ge=0, le=MAX_NUMBER)
    """The first of them."""
    loss: float
    """Mean training loss."""


class GrowthForecast(Record):
    """What growing once more would gain, as the job's agent expects it, if extra workers were lent from then on."""

    gain: float = Field(ge=-1, le=1)
    """Final accuracy gained (of another task, its score as a number between 0 and 1); 0 where the agent would advise
    nothing, and once the job may not grow any more."""
    low: float = Field(ge=-1, le=1)
    """Lower end of the interval that four of five estimates are in."""
    high: float = Field(ge=-1, le=1)
    """Upper end of it."""
    seconds: float = Field(ge=0, le=YEAR_SECONDS)
    """For how long extra workers are needed until it has grown: to the end of an epoch, and for trials."""


class Measurements(Record):
    """All that was measured of a job, and what its agent expects."""

    speeds: tuple[Speed, ...] = Field(default=(), max_length=MAX_CONFIGURATIONS)
    """By configuration, the one that was used last at the end."""
    gradient: GradientNoise | None = None
    losses: tuple[LossPoint, ...] = Field(default=(), max_length=MAX_LOSS_POINTS)
    """The training loss from the first step on, in equal distances."""
    growth: GrowthForecast | None = None
    """The newest; None where the agent has not been asked, or does not tell."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing is known."""
        return not (self.speeds or self.gradient or self.losses or self.growth)


def configuration_of(speed: Speed) -> tuple[int, int, int, int, int, str]:
    """Return what tells one configuration from another."""
    return speed.nodes, speed.workers, speed.batch_size, speed.parameters, speed.passes, speed.gpu_type


def has_new_configuration(before: Measurements, after: Measurements) -> bool:
    """Return whether a configuration was measured, or growth forecast, for the first time, or growing gains nothing
    any more: then policies may decide otherwise at once.
    """
    known = set(map(configuration_of, before.speeds))
    if any(configuration_of(speed) not in known for speed in after.speeds):
        return True
    return after.growth is not None and (before.growth is None or (before.growth.gain > 0) != (after.growth.gain > 0))


def merged(before: Measurements, after: Measurements) -> Measurements:
    """Return what is known of a job after a report with `after`: of each configuration the newest figures.

    A leader that starts has measured nothing yet, and knows of earlier leaders what its checkpoint says.
    """
    measured = {configuration_of(speed) for speed in after.speeds}
    earlier = (speed for speed in before.speeds if configuration_of(speed) not in measured)
    return Measurements(
        speeds=(*earlier, *after.speeds)[-MAX_CONFIGURATIONS:],
        gradient=after.gradient or before.gradient,
        losses=after.losses or before.losses,
        growth=after.growth or before.growth,
    )


def differs(before: Measurements, after: Measurements, share: float) -> bool:
    """Return whether a figure differs by more than `share` of itself, so that it is worth writing."""
    if [*map(configuration_of, before.speeds)] != [*map(configuration_of, after.speeds)]:
        return True
    if (before.gradient is None) != (after.gradient is None) or (before.growth is None) != (after.growth is None):
        return True
    return any(abs(new - old) > share * max(abs(new), abs(old)) for old, new in _figures(before, after))


def _figures(before: Measurements, after: Measurements) -> Iterable[tuple[float, float]]:
    for old, new in zip(before.speeds, after.speeds, strict=True):
        yield old.step_seconds, new.step_seconds
        # What is far below the duration of the step does not matter, however much it varies.
        yield old.step_seconds + old.sync_seconds, old.step_seconds + new.sync_seconds
    if before.gradient is not None and after.gradient is not None:
        yield before.gradient.squared_norm, after.gradient.squared_norm
        yield before.gradient.variance, after.gradient.variance
    if before.growth is not None and after.growth is not None:
        yield before.growth.gain, after.growth.gain
        yield before.growth.seconds, after.growth.seconds
    yield (before.losses[-1].step if before.losses else 0, after.losses[-1].step if after.losses else 0)
