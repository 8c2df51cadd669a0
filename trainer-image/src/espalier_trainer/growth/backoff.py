"""When an agent is asked again that gave no answer. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SILENCE_SHARE: Final = 0.01


@dataclass
class Silence:
    """When an agent that gave no answer is asked again, by the used seconds of the budget.

    After 1 % of the budget, then twice as long each time in a row: seven times in a budget at most.
    """

    times: int = 0
    """How often in a row there was no answer."""
    until: float = 0.0

    def holds(self, used_seconds: float) -> bool:
        """Return whether it is too early to ask."""
        return used_seconds < self.until

    def heard(self, answered: bool, used_seconds: float, budget_seconds: float) -> None:
        """Take note of a question, whether or not it was answered."""
        self.times = 0 if answered else self.times + 1
        if not answered:
            self.until = used_seconds + SILENCE_SHARE * budget_seconds * 2 ** (self.times - 1)
