"""What decides when the agent is away: `adaptation.fallback` of the job."""

from __future__ import annotations

import random
from dataclasses import dataclass

from espalier_api.advice import Action, AdviceRequest
from espalier_api.job import Fallback

HEURISTIC_MIN_LEFT = 0.1
"""Share of the budget that must be left for the heuristic to deepen. On digits and cifar8 deepening the first block
gained at every moment that `make bench-pays` compares, with 15 % left still .082 ± .028 and .018 ± .004 (95 %, five
paired seeds); with 5 % left it was only .013 and .002 (three to five seeds)."""


@dataclass(frozen=True, slots=True)
class FallbackPolicy:
    """Chooses one of the allowed actions without an agent."""

    kind: Fallback
    seed: int = 0
    """Of random choices."""

    def choose(self, request: AdviceRequest) -> Action:
        """Return one of `request.actions()`.

        `None`: nothing. `Random`: all allowed actions alike, `Nothing` among them; the same for the same seed and
        consultation. `Heuristic`: the first growth, or nothing when too little budget is left.
        """
        if self.kind is Fallback.RANDOM:
            # A separate generator, so that training's random numbers stay the same.
            return random.Random(f"{self.seed}/{request.job}/{request.progress.adaptations}").choice(request.actions())
        enough = request.time_left_seconds >= HEURISTIC_MIN_LEFT * request.time_budget_seconds
        return request.actions()[0] if self.kind is Fallback.HEURISTIC and enough else Action.nothing()
