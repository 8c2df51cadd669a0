"""What the agent learns of a job: how it ended, and what was tried in it."""

from __future__ import annotations

from espalier_core.types.advice import Action, OutcomeReport, TrialOutcome
from espalier_core.types.job import AdaptiveTrainingJob
from espalier_core.types.report import MAX_ARMS, Adaptation, AdaptationResult, AdaptationSource
from espalier_core.types.task import Score
from espalier_trainer.growth.advisor import Advisor
from espalier_trainer.training.progress import Progress


def report_outcome(
    job: AdaptiveTrainingJob, advisor: Advisor | None, progress: Progress, final: Score, quality: float
) -> None:
    """Report to the advisor how the job ended, if decisions of the advisor were carried out; best effort.

    `quality` is that of `final`.
    """
    carried_out = [
        adaptation
        for adaptation in progress.adaptations
        if adaptation.source is AdaptationSource.AGENT
        and adaptation.result in (AdaptationResult.GROWN, AdaptationResult.DECLINED)
    ]
    if advisor is not None and carried_out:
        advisor.report_outcome(
            OutcomeReport(
                job=job.key,
                decision_ids=tuple(adaptation.decision_id for adaptation in carried_out),
                final_accuracy=quality,
                measure=final.measure,
                time_budget_seconds=job.spec.time_budget_seconds,
                trials=tuple(map(_tried, (one for one in carried_out if one.arms))),
            )
        )


def _tried(adaptation: Adaptation) -> TrialOutcome:
    grown = adaptation.result is AdaptationResult.GROWN
    return TrialOutcome(
        decision_id=adaptation.decision_id,
        action=adaptation.action if grown else str(Action.nothing()),
        arms=adaptation.arms[:MAX_ARMS],
    )
