"""Who is asked in a benchmark: the shipped policy, without a server."""

from __future__ import annotations

from espalier_agent.policies.advice import advise
from espalier_agent.policies.files import default_policy
from espalier_api.advice import AdviceRequest, OutcomeReport
from espalier_api.report import AdaptationSource
from espalier_trainer.advisor import Decision


class DefaultPolicy:
    """The shipped policy, asked in this process."""

    def __init__(self) -> None:
        self._policy = default_policy()

    def advise(self, request: AdviceRequest, wall_seconds: float) -> Decision:
        """Return the policy's greedy decision."""
        answer = advise(self._policy, request, f"decision-{request.progress.adaptations}")
        return Decision(answer.decision_id, answer.action, AdaptationSource.AGENT, self._policy.name)

    def report_outcome(self, outcome: OutcomeReport) -> None:
        """Nothing learns here."""
