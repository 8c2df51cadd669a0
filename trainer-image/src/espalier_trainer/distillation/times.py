"""What steps took, of each size of a model and number of GPUs: by that a smaller model is chosen."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Final

from espalier_trainer.distillation.trial import StepTimes

MEASURED_STEPS: Final = 10
"""Number of steps measured with the GPUs left before a decision: enough for a typical median."""


class Times:
    """The latest budget seconds per step, by the structure of the network and the number of replicas."""

    def __init__(self, known: Iterable[StepTimes] = ()) -> None:
        """Continue with what a checkpoint holds."""
        self._seconds = {(each.structure, each.replicas): list(each.seconds) for each in known}

    def state(self) -> tuple[StepTimes, ...]:
        """Return what a checkpoint must hold."""
        return tuple(
            StepTimes(structure=structure, replicas=replicas, seconds=tuple(seconds))
            for (structure, replicas), seconds in self._seconds.items()
        )

    def took(self, structure: str, replicas: int, seconds: float) -> None:
        """Record a step."""
        found = self._seconds.setdefault((structure, replicas), [])
        found.append(seconds)
        del found[:-MEASURED_STEPS]

    def forget(self, structure: str, replicas: int) -> None:
        """Measure these steps again."""
        self._seconds.pop((structure, replicas), None)

    def known(self, structure: str, replicas: int) -> bool:
        """Return whether `MEASURED_STEPS` have been measured."""
        return len(self._seconds.get((structure, replicas), ())) >= MEASURED_STEPS

    def median(self, structure: str, replicas: int) -> float:
        """Return the median; raises `statistics.StatisticsError` where nothing was measured."""
        return statistics.median(self._seconds.get((structure, replicas), ()))

    def with_more(self, structure: str, replicas: int) -> float | None:
        """Return the least median of the same structure with more replicas, None where there is none."""
        found = (
            statistics.median(seconds)
            for (known, number), seconds in self._seconds.items()
            if known == structure and number > replicas
        )
        return min(found, default=None)

    def expected(self, structure: str, replicas: int, grown: str, large: float) -> float | None:
        """Return the seconds per step of a structure: as measured, or scaled from another number of replicas.

        The latter in proportion: what the present structure's steps (`grown`, `large` seconds now) took with that
        number. None: neither was measured.
        """
        if seconds := self._seconds.get((structure, replicas)):
            return statistics.median(seconds)
        for (known, number), seconds in self._seconds.items():
            if known == structure and (grown_seconds := self._seconds.get((grown, number))):
                return statistics.median(seconds) * large / statistics.median(grown_seconds)
        return None
