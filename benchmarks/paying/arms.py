"""The arms: what a job makes of a GPU that comes and goes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from harness.runs import DefaultPolicy

from espalier_core.types.advice import Action
from espalier_core.types.job import AdaptiveTrainingJob, ElasticBatch
from espalier_core.validation.reading import with_spec
from espalier_trainer.growth.advisor import Advisor, Scripted
from espalier_trainer.signals.scheduler import ReplicaChange

NEVER: Final = 1_000_000


class Arm(StrEnum):
    """What the job makes of the extra GPU."""

    ALONE = "small, base GPU only"
    ELASTIC = "small, elastic"
    SCRATCH = "deep from scratch, elastic"
    AGENT = "grown by the agent, elastic"
    FIXED = "grown at the first block, elastic"


@dataclass(frozen=True, slots=True)
class Timeline:
    """One more GPU from `come` to `gone`, in seconds of the budget."""

    come: float
    gone: float

    def arrivals(self) -> tuple[ReplicaChange, ...]:
        """Return it as the scheduler of a trainer takes it."""
        return (ReplicaChange(self.come, 2), ReplicaChange(self.gone, 1))


def timeline(share: float, length: float, budget: float) -> Timeline:
    """Return the timeline of a GPU that comes when `share` of the budget is used and stays for `length` of it.

    It is gone at 95 % of the budget at the latest.
    """
    return Timeline(share * budget, min(share + length, 0.95) * budget)


def job_of(job: AdaptiveTrainingJob, arm: Arm, policy: ElasticBatch) -> AdaptiveTrainingJob:
    """Return the job as this arm trains it; nothing is evaluated, averaged or saved on the way: it costs time."""
    return with_spec(
        job,
        adaptation={"mode": "Auto" if arm in (Arm.AGENT, Arm.FIXED) else "Off"},
        training={
            "evaluateEveryEpochs": NEVER,
            "elasticBatch": None if arm is Arm.ALONE else policy,
            "weightAveraging": 0.0,
        },
    )


def advisor_of(job: AdaptiveTrainingJob, arm: Arm, first: str) -> Advisor | None:
    """Return whom this arm asks; `first` is the name of the first growth point."""
    if arm is Arm.AGENT:
        return DefaultPolicy()
    if arm is Arm.FIXED:
        return Scripted((Action.deepen(first),) * job.spec.adaptation.max_adaptations, "always the first block")
    return None
