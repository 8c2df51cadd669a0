"""The learners by name. A learner is a module with a configuration (a `Record`) and a function `learn`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from espalier_agent.learners import distilled, dqn, expected, ppo, reinforce
from espalier_agent.learners.learning import LearningError, ProgressCallback
from espalier_agent.policies.policy import Policy
from espalier_api.base import Record
from espalier_api.outcomes import OutcomeTable


class Learn(Protocol):
    """What each learner offers: the same tables, configuration, seed and parent give the same policy, bit for bit."""

    def __call__(
        self,
        tables: Sequence[OutcomeTable],
        *,
        config: Any,
        encoder: str,
        seed: int,
        name: str,
        parent: Policy | None,
        progress: ProgressCallback | None,
    ) -> Policy:
        """Learn a policy from tables; `encoder` is that of a fresh network, a parent keeps its own."""


@dataclass(frozen=True, slots=True)
class Learner:
    """A learner, its recipes (configurations with a name), and the encoder of a fresh network when none is named."""

    name: str
    learn: Learn
    recipes: Mapping[str, Record]
    """The first is the one when nothing is said."""
    encoder: str

    def recipe(self, name: str | None) -> Record:
        """Return the recipe of this name, or the first; `LearningError` names those there are."""
        if name is None:
            return next(iter(self.recipes.values()))
        if name not in self.recipes:
            raise LearningError(f"learner {self.name} has no recipe {name!r}; its recipes: {', '.join(self.recipes)}")
        return self.recipes[name]


LEARNERS: Final = {
    learner.name: learner
    for learner in (
        Learner("expected", expected.learn, {"fit": expected.FIT, "smooth": expected.SMOOTH}, "graph"),
        Learner("distilled", distilled.learn, {"default": distilled.DEFAULT}, "graph"),
        Learner("reinforce", reinforce.learn, {"paper": reinforce.PAPER, "batched": reinforce.BATCHED}, "lstm"),
        Learner("ppo", ppo.learn, {"default": ppo.DEFAULT}, "graph"),
        Learner("dqn", dqn.learn, {"default": dqn.DEFAULT}, "graph"),
    )
}
DEFAULT_LEARNER: Final = "expected"
