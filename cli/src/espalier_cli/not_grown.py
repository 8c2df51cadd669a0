"""Why a run ended without having grown, and what to change: the last line of `espalier run`. Pure."""

from __future__ import annotations

from espalier_core.types.job import AdaptationMode, AdaptiveTrainingJob, Trials
from espalier_core.types.report import AdaptationResult, AdaptationSource
from espalier_core.types.result import RunResult


def why_not_grown(result: RunResult, job: AdaptiveTrainingJob) -> str:
    """Return why the model did not grow; empty if it grew, or if the job does not ask for growth."""
    spec = job.spec
    asked = [each for each in result.adaptations if each.source in (AdaptationSource.AGENT, AdaptationSource.FALLBACK)]
    if (
        spec.program is not None
        or spec.adaptation.mode is AdaptationMode.OFF
        or result.depth_after == 0  # it never trained
        or any(each.result is AdaptationResult.GROWN for each in asked)
    ):
        return ""
    if result.cannot_grow:
        return f"it did not grow: {result.cannot_grow}"
    if spec.adaptation.mode is AdaptationMode.DRY_RUN:
        return "it did not grow: adaptation.mode is DryRun, which only records the advice; set it to Auto"
    if all(each.allocation.replicas <= spec.min_replicas for each in result.allocations):
        return (
            f"it did not grow: no extra GPU was lent to it (minReplicas {spec.min_replicas}, maxReplicas "
            f"{spec.max_replicas}); it needs a free GPU, such as by --arrive 30%:1"
        )
    if not asked:
        return "it did not grow: it ended before a question to the agent was answered"
    last = asked[-1]
    if last.result is not AdaptationResult.DECLINED:
        return f"it did not grow: {last.action} failed: {last.message}"
    times = "once" if len(asked) == 1 else f"{len(asked)} times"
    if last.arms:
        return f"it did not grow: tried {times}, no growth was better ({last.message})"
    if last.source is AdaptationSource.FALLBACK:
        remedy = "start an agent, or set adaptation.fallback to Heuristic"
        return f"it did not grow: no agent answered, and the fallback {last.policy} advised {last.action}; {remedy}"
    tries = (
        "" if spec.adaptation.trials is not Trials.OFF else "adaptation.trials: Race tries it on the extra GPU, and "
    )
    remedy = f"{tries}--no-agent leaves the decision to adaptation.fallback"
    return f"it did not grow: {last.policy} advised {times} against it; {remedy}"
