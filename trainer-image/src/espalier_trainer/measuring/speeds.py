"""The duration of steps by configuration. Pure: the caller passes all times."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from espalier_core.base import YEAR_SECONDS
from espalier_core.types.measurements import MAX_CONFIGURATIONS, Speed, configuration_of

WARM_UP_STEPS: Final = 5
"""After a change of workers or model, steps still allocate memory and choose kernels; they are not measured."""
WINDOW: Final = 64
"""The newest steps of a configuration, of which the median is taken: a pause in one of them does not matter."""

Key = tuple[int, int, int, int, int]
"""Nodes, workers, examples of a worker, parameters, passes: what changes of a configuration while a job runs."""
_Typed = tuple[int, int, int, int, int, str]
"""With the type of GPU: as `configuration_of` returns it."""


@dataclass
class _Window:
    steps: int = 0
    step: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    sync: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))


class Speeds:
    """The configurations that were used last. Nothing is kept of earlier ones."""

    def __init__(self, earlier: Iterable[Speed] = (), *, gpu_type: str = "") -> None:
        """`earlier` were measured before; each holds until its configuration is measured again.

        All that is measured is on `gpu_type`; `earlier` may be on others.
        """
        self._gpu_type = gpu_type
        self._known: dict[_Typed, Speed | _Window] = {configuration_of(speed): speed for speed in earlier}
        self._last: Key | None = None
        self._warm_up = 0

    def changed(self) -> None:
        """Record a change after which steps warm up."""
        self._warm_up = WARM_UP_STEPS

    def add(self, key: Key, step_seconds: float, sync_seconds: float | None) -> None:
        """Count a step; `sync_seconds` None: they were not measured in this one."""
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
        """Return the figures of all configurations that are known, the one used last at the end."""
        found = (_speed(key, each) if isinstance(each, _Window) else each for key, each in self._known.items())
        return tuple(speed for speed in found if speed is not None)


def _speed(key: _Typed, window: _Window) -> Speed | None:
    """Return the figures of a window; None where it has too few yet."""
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
