"""What decides when the agent is away: `adaptation.fallback` of the job."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Protocol

from espalier_api.advice import Action, AdviceRequest
from espalier_api.job import Fallback

HEURISTIC_MIN_LEFT = 0.1
"""Share of the budget that must be left for the heuristic to deepen. On digits and cifar8 deepening the first block
gained at every moment that `make bench-pays` compares, with 15 % left still .082 ± .028 and .018 ± .004 (95 %, five
paired seeds); with 5 % left it was only .013 and .002 (three to five seeds)."""


class FallbackPolicy(Protocol):
    """Chooses one of the allowed actions without an agent."""

    @property
    def name(self) -> str:
        """What `Adaptation.policy` says."""

    def choose(self, request: AdviceRequest) -> Action:
        """Return one of `request.actions()`."""


@dataclass(frozen=True, slots=True)
class LeaveAsIs:
    """`None`: nothing."""

    name: str = "None"

    def choose(self, request: AdviceRequest) -> Action:
        """Return nothing."""
        return Action.nothing()


@dataclass(frozen=True, slots=True)
class Random:
    """`Random`: all allowed actions alike, `Nothing` among them; the same for the same seed and consultation."""

    seed: int
    name: str = "Random"

    def choose(self, request: AdviceRequest) -> Action:
        """Return an action drawn with a separate generator, so that training's random numbers stay the same."""
        chance = random.Random(f"{self.seed}/{request.job}/{request.progress.adaptations}")
        return chance.choice(request.actions())


@dataclass(frozen=True, slots=True)
class Heuristic:
    """`Heuristic`: deepen the first growth point while a tenth of the budget is left."""

    name: str = "Heuristic"

    def choose(self, request: AdviceRequest) -> Action:
        """Return the first growth, or nothing when too little budget is left."""
        if request.time_left_seconds < HEURISTIC_MIN_LEFT * request.time_budget_seconds:
            return Action.nothing()
        return request.actions()[0]


def build_fallback(kind: Fallback, seed: int) -> FallbackPolicy:
    """Return the policy of that name."""
    if kind is Fallback.RANDOM:
        return Random(seed)
    if kind is Fallback.HEURISTIC:
        return Heuristic()
    return LeaveAsIs()
