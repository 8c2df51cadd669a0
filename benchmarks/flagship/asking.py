"""The shipped policy as the advisor of a run, in this process: what it says does not depend on the time it takes."""

from __future__ import annotations

from dataclasses import dataclass, field

from espalier_agent.policies.advice import decide
from espalier_agent.policies.policy import Policy, default_policy
from espalier_core.types.advice import Action, AdviceRequest, ExpectedGain
from espalier_core.types.report import AdaptationSource
from espalier_trainer.growth.advisor import Advisor, AdvisorDecision


@dataclass
class Asking(Advisor):
    """Advises what the policy says, or `instead` of it what a race tries."""

    policy: Policy = field(default_factory=default_policy)
    instead: Action | None = None
    gains: dict[str, ExpectedGain] = field(default_factory=dict)
    """What the policy expects of actions, by their texts: from its latest advice."""

    def advise(self, request: AdviceRequest, wall_seconds: float) -> AdvisorDecision:
        """Return what the policy says."""
        advice = decide(self.policy, request)
        self.gains = {str(entry.action): entry.gain for entry in advice.probabilities if entry.gain is not None}
        action = advice.action if self.instead is None else self.instead
        return AdvisorDecision(f"asked-{request.progress.adaptations}", action, AdaptationSource.AGENT, "shipped")
