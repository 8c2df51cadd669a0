"""The course of the loss in a bounded number of points. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from espalier_core.types.measurements import MAX_LOSS_POINTS, LossPoint


class LossCurve:
    """Means over equal numbers of steps; where there are too many points, two become one, and later ones are longer."""

    def __init__(self, earlier: Sequence[LossPoint] = ()) -> None:
        """Continue a curve that was kept, if there is one."""
        self._points = [(point.epoch, point.step, point.loss) for point in earlier]
        self._stride = max(1, earlier[-1].step - earlier[-2].step) if len(earlier) > 1 else 1
        self._count, self._sum, self._first = 0, 0.0, (0, 0)

    def add(self, epoch: int, step: int, loss: float) -> None:
        """Add the loss of a step. One that is not finite is left out."""
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
