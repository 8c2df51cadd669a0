"""The best batch size for a placement and a gradient, chosen as under Pollux (Qiao et al., OSDI 2021, 3.2)."""

from __future__ import annotations

import math
from typing import Final

from espalier_core.estimates.goodput import adascale_gain
from espalier_lab.simulator.profiles import Application

CHOICES: Final = 50
"""Number of batch sizes that are compared, in equal ratios from the smallest to the largest, as in the artifact."""
_ROUNDING: Final = 1e-8

Batch = tuple[float, int, int]
"""Goodput in steps of the initial batch size per second, examples of a worker in a pass, and accumulation steps."""


class BestBatches:
    """The best batch sizes of an application by placement and epoch; jobs of the application share it."""

    def __init__(self, application: Application) -> None:
        self._application = application
        self._known: dict[tuple[tuple[int, ...], int], Batch] = {}
        self._rows: dict[tuple[int, ...], list[tuple[float, int, int, int]]] = {}

    def best(self, placement: tuple[int, ...], epoch: int) -> Batch:
        """Return the best batch size during an epoch; 0 examples if none can be trained."""
        known = self._known.get((placement, epoch))
        if known is None:
            application = self._application
            known = 0.0, 0, 0
            for step, atomic, accumulations, batch in self._candidates(placement):
                square, variance = application.gradient(batch, epoch)
                gain = adascale_gain(square, variance, batch / application.initial_batch)
                known = max(known, (gain / step, atomic, accumulations))
            self._known[placement, epoch] = known
        return known

    def _candidates(self, placement: tuple[int, ...]) -> list[tuple[float, int, int, int]]:
        """Return for each choice: seconds of a step, examples of a worker in a pass, accumulation steps, batch size."""
        rows = self._rows.get(placement)
        if rows is None:
            application, workers = self._application, sum(placement)
            low, high = max(application.initial_batch, application.min_local * workers), application.max_batch
            choices = set()
            for index in range(CHOICES):
                local = low * (high / low) ** (index / (CHOICES - 1)) / workers
                accumulations = math.ceil(local / application.max_local - _ROUNDING) - 1
                if workers == 1 and local > application.initial_batch + _ROUNDING:
                    accumulations = max(1, accumulations)
                atomic = math.ceil(local / (accumulations + 1) - _ROUNDING)
                atomic = min(atomic, application.max_batch // (workers * (accumulations + 1)))
                if atomic >= application.min_local:
                    choices.add((atomic, accumulations))
            rows = []
            for atomic, accumulations in sorted(choices):
                step, sync = application.times(placement, atomic)
                seconds = step + (step - sync) * accumulations
                rows.append((seconds, atomic, accumulations, workers * atomic * (accumulations + 1)))
            self._rows[placement] = rows
        return rows
