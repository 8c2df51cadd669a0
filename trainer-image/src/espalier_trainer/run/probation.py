"""Steps of the training itself, every other one computed in another way, until it is known which way is faster.

Both ways compute the same, so nothing of the training is lost, and what is timed are whole steps.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from espalier_trainer.run.attempts import Found
from espalier_trainer.training.comparing import PAIRS, WARMUP, Comparison
from espalier_trainer.training.network import Network

_EARLY: Final = 5
_HOPELESS: Final = 0.9
"""A way whose median gain is below that after `_EARLY` pairs is not tried further."""


@dataclass
class Probation:
    """Compares the way in which `network` computes its steps with that of `other`."""

    network: Network
    other: Network
    """The same network with an execution."""
    found: Found
    spent: float
    """Seconds that finding it has taken."""
    _pairs: list[tuple[float, float]] = field(default_factory=list)
    _taken: int = 0
    _first: float = 0.0

    @property
    def next(self) -> Network:
        """What computes the next step. Every other pair begins with the other way."""
        pair, second = divmod(self._taken, 2)
        return self.other if bool(second) != bool(pair % 2) else self.network

    def stepped(self, seconds: float) -> None:
        """Take note of the step that `next` has computed."""
        pair, second = divmod(self._taken, 2)
        self._taken += 1
        if not second:
            self._first = seconds
        elif pair >= WARMUP:
            self._pairs.append((self._first, seconds) if pair % 2 == 0 else (seconds, self._first))

    @property
    def over(self) -> bool:
        """Whether it is known which way is faster."""
        count = len(self._pairs)
        return count >= PAIRS or (count >= _EARLY and self.comparison.gain < _HOPELESS)

    @property
    def comparison(self) -> Comparison:
        """The pairs so far."""
        return Comparison(tuple(self._pairs))
