"""The learners by name. A learner is a module with a configuration (a `Record`) and a function `learn`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from espalier_agent.learners import reinforce
from espalier_agent.learners.learning import ProgressCallback
from espalier_agent.policy import Policy
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
    """A learner and its configuration when nothing is said."""

    name: str
    config: Record
    learn: Learn


LEARNERS: Final = {learner.name: learner for learner in (Learner("reinforce", reinforce.BATCHED, reinforce.learn),)}
