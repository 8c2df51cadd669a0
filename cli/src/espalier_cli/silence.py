"""What a job is doing when nothing has been printed of it for long: a big model is built, a first step is compiled."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from espalier_core.types.report import TrainerPhase
from espalier_operator.local.run import JobView

FIRST_SECONDS: Final = 30.0
"""Silence before the first line; each further one comes after twice as long."""
_DOING: Final = {
    None: "starting up: it imports, loads data, builds the model, or looks for places to grow",
    TrainerPhase.STARTING: "starting up: it loads data, builds the model, or looks for places to grow",
    TrainerPhase.ADAPTING: "growing",
    TrainerPhase.EVALUATING: "evaluating",
}


class Silences:
    """Since when nothing was printed of each job."""

    def __init__(self, jobs: Iterable[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._heard = dict.fromkeys(jobs, clock())
        self._next = dict.fromkeys(self._heard, FIRST_SECONDS)

    def heard(self, job: str) -> None:
        """Take in that something was printed of a job."""
        if job in self._heard:
            self._heard[job], self._next[job] = self._clock(), FIRST_SECONDS

    def lines(self, views: Iterable[JobView]) -> Iterator[tuple[str, str]]:
        """Yield name and line of the jobs that have been silent for long and hold GPUs."""
        for view in views:
            if not view.gpus:
                self.heard(view.name)
            silent = self._clock() - self._heard.get(view.name, self._clock())
            if silent >= self._next.get(view.name, FIRST_SECONDS):
                self._next[view.name] *= 2
                doing = _DOING.get(view.doing, f"training, at step {view.step:,}")
                yield view.name, f"nothing new for {silent:.0f} s; {doing}"
