"""Collections of tables from the digits net, with budgets of a fraction of a second."""

from __future__ import annotations

import json
from pathlib import Path

from espalier_core.types.job import AdaptiveTrainingJob
from espalier_core.validation.reading import load_job
from espalier_lab.growth.collect.collecting import set_up
from espalier_lab.growth.collect.training import Collection, Time

JOB = Path(__file__).parents[2] / "examples" / "digits.yaml"
COST = "2,0.6,0.5,0.2"
WIDENING_COST = f"{COST},0.3,0.2,0.1"


def job_with(*actions: str, budget: float = 0.25, **training: object) -> AdaptiveTrainingJob:
    """Return the example with other settings of its training; `actions`: what it may do, if not what it says."""
    whole = json.loads(json.dumps(load_job(JOB).to_json()))
    whole["spec"]["timeBudgetSeconds"] = budget
    whole["spec"]["training"] |= training
    whole["spec"]["adaptation"] |= {"actions": [*actions]} if actions else {}
    return AdaptiveTrainingJob.model_validate(whole)


def setting(
    job: AdaptiveTrainingJob,
    *,
    decisions: int = 2,
    start_at: float = 0.05,
    step_cost: str | None = COST,
    time_kind: Time = Time.VIRTUAL,
) -> Collection:
    """Return a collection, in virtual time if nothing else is said."""
    return set_up(
        job,
        start_at=start_at,
        decisions=decisions,
        time_kind=time_kind,
        step_cost=step_cost,
        known_cost=lambda points, groups: None,
        throughput=1.8,
        device="cpu",
    )
