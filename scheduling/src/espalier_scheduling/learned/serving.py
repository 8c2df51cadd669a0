"""A learnt policy in the place of a rule: a `Policy` of the operator's protocol. Without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from espalier_operator.policies.view import Decision, Elasticity, View
from espalier_scheduling.learned.description import WORKERS_ONLY
from espalier_scheduling.learned.files import LearnedPolicy, LearnedPolicyError
from espalier_scheduling.learned.picture import Picture


@dataclass(frozen=True, slots=True)
class LearnedAllocation:
    """Gives workers one at a time to the job that the network scores highest, until "stop" scores highest.

    Jobs with the same score: the first one of the view. Nothing is remembered.
    """

    policy: LearnedPolicy
    name: str = "learned"
    elasticity: ClassVar[Elasticity] = Elasticity.WORKERS

    def __post_init__(self) -> None:
        actions = self.policy.lineage.actions
        if actions != WORKERS_ONLY:
            raise LearnedPolicyError(
                f"policy {self.policy.lineage.name}: gives {', '.join(actions)}; here only workers can be given: name "
                "one that was learnt on jobs with all-reduce"
            )

    @property
    def queue_order(self) -> str:
        """Return the order of admission in words."""
        return "by the learned policy"

    def decide(self, view: View) -> Decision:
        """Return shares that sum up to all GPUs at most."""
        picture = Picture.of(view)
        while len(view.jobs) and (mask := picture.mask()).any():
            chosen = int(self.policy.network.scores(picture.inputs(), mask).argmax())
            if chosen == len(view.jobs):
                break
            picture.give(chosen)
        return picture.decision(view.now)
