"""Duration of steps by configuration, the course of the loss, and the choice of steps to measure. Pure.

The caller passes all times. The course of the loss is kept in a bounded number of points, and measuring costs a bounded
share of the time.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from espalier_core.base import YEAR_SECONDS
from espalier_core.types.measurements import MAX_CONFIGURATIONS, MAX_LOSS_POINTS, LossPoint, Speed, configuration_of

WARM_UP_STEPS: Final = 5
"""Number of unmeasured steps after a change of workers or model: they allocate memory and choose kernels."""
WINDOW: Final = 64
"""Number of a configuration's newest steps whose median is taken: a pause in one of them does not matter."""

Key = tuple[int, int, int, int, int]
"""Nodes, workers, examples of a worker, parameters, passes: the parts of a configuration that change during a job."""
_Typed = tuple[int, int, int, int, int, str]
"""Key with the GPU type, as returned by `configuration_of`."""


@dataclass
class _Window:
    steps: int = 0
    step: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    sync: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))


class StepSpeeds:
    """Step times of the most recently used configurations."""

    def __init__(self, earlier: Iterable[Speed] = (), *, gpu_type: str = "") -> None:
        """`earlier` were measured before; each holds until its configuration is measured again.

        All measurements are on `gpu_type`; `earlier` may be on others.
        """
        self._gpu_type = gpu_type
        self._known: dict[_Typed, Speed | _Window] = {configuration_of(speed): speed for speed in earlier}
        self._last: Key | None = None
        self._warm_up = 0

    def changed(self) -> None:
        """Record a change after which steps warm up."""
        self._warm_up = WARM_UP_STEPS

    def add(self, key: Key, step_seconds: float, sync_seconds: float | None) -> None:
        """Count a step; `sync_seconds` is None if it was not measured in this step."""
        typed = (*key, self._gpu_type)
        if key != self._last:
            self._last = key
            self.changed()
            self._known[typed] = self._known.pop(typed) if typed in self._known else _Window()
            while len(self._known) > MAX_CONFIGURATIONS:
                del self._known[next(iter(self._known))]
        if self._warm_up > 0:
            self._warm_up -= 1
            return
        window = self._known[typed]
        if isinstance(window, Speed):
            window = self._known[typed] = _Window()
        window.steps += 1
        window.step.append(step_seconds)
        if sync_seconds is not None:
            window.sync.append(sync_seconds)

    def measured(self) -> tuple[Speed, ...]:
        """Return the figures of all known configurations, the most recently used one last."""
        found = (_speed(key, each) if isinstance(each, _Window) else each for key, each in self._known.items())
        return tuple(speed for speed in found if speed is not None)


def _speed(key: _Typed, window: _Window) -> Speed | None:
    """Return the figures of a window; None while it has too few steps."""
    nodes, workers, examples, parameters, passes, gpu_type = key
    alone = workers == 1
    seconds = statistics.median(window.step) if window.step else 0.0
    if not 0 < seconds <= YEAR_SECONDS or not (alone or window.sync):
        return None
    return Speed(
        nodes=nodes,
        workers=workers,
        batch_size=examples,
        parameters=parameters,
        passes=passes,
        gpu_type=gpu_type,
        steps=window.steps,
        step_seconds=seconds,
        sync_seconds=0.0 if alone else min(seconds, statistics.median(window.sync)),
    )


class LossCurve:
    """Means over equal numbers of steps; when there are too many points, pairs are merged, and later ones longer."""

    def __init__(self, earlier: Sequence[LossPoint] = ()) -> None:
        """Continue an earlier curve, if there is one."""
        self._points = [(point.epoch, point.step, point.loss) for point in earlier]
        self._stride = max(1, earlier[-1].step - earlier[-2].step) if len(earlier) > 1 else 1
        self._count, self._sum, self._first = 0, 0.0, (0, 0)

    def add(self, epoch: int, step: int, loss: float) -> None:
        """Add the loss of a step, unless it is not finite."""
        if not math.isfinite(loss):
            return
        if not self._count:
            self._first = epoch, step
        self._count += 1
        self._sum += loss
        if self._count < self._stride:
            return
        self._points.append((*self._first, self._sum / self._count))
        self._count, self._sum = 0, 0.0
        if len(self._points) > MAX_LOSS_POINTS:
            self._thin()

    def _thin(self) -> None:
        pairs = zip(self._points[::2], self._points[1::2], strict=False)
        rest = self._points[len(self._points) // 2 * 2 :]
        self._points = [(epoch, step, (loss + other) / 2) for (epoch, step, loss), (_, _, other) in pairs]
        self._stride *= 2
        for epoch, step, loss in rest:  # the first half of a point of the new length
            self._first, self._count, self._sum = (epoch, step), self._stride // 2, loss * (self._stride // 2)

    def measured(self) -> tuple[LossPoint, ...]:
        """Return the points."""
        return tuple(LossPoint(epoch=epoch, step=step, loss=loss) for epoch, step, loss in self._points)


SHARE: Final = 0.01
"""Maximum share of the time of steps that measuring the gradient noise may cost."""
LEAST_STEPS: Final = 10
"""Minimum number of steps between measurements: closer ones would not be independent."""


class NoiseSampling:
    """Budget of measurements: earns a share of each step, and spends it on measurements.

    The first one is on credit, because its cost is unknown: the next follows when it is paid back, and the cost of one
    more is earned.
    """

    def __init__(self, share: float = SHARE) -> None:
        self._share = share
        self._earned = self._cost = 0.0
        """Seconds to spend, below zero in debt; and the expected cost of a measurement."""
        self._steps = 0

    def due(self, after: int = 0) -> bool:
        """Return whether a measurement is due now, or in `after` more steps."""
        return self._steps + after >= LEAST_STEPS and self._earned >= self._cost

    def stepped(self, seconds: float) -> None:
        """Count a step that took `seconds`."""
        # No more than one measurement is saved up: a run that was slow before must not measure every step now.
        self._earned = min(self._earned + self._share * seconds, self._cost)
        self._steps += 1

    def paid(self, seconds: float) -> None:
        """Count a measurement that cost `seconds`."""
        self._earned -= seconds
        self._cost = seconds if self._cost == 0 else (self._cost + seconds) / 2
        self._steps = 0
