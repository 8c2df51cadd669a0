"""The last line of a run that did not grow: why, and what would change it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from espalier_cli.run_command import why_not_grown
from espalier_core.types.allocation import Allocation
from espalier_core.types.report import Adaptation, AdaptationResult, AdaptationSource, Arm
from espalier_core.types.result import AllocationRecord, RunResult
from espalier_core.validation.reading import parse_jobs

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def job(mode: str = "Auto") -> Any:
    text = (
        "apiVersion: espalier.dev/v1alpha1\nkind: AdaptiveTrainingJob\nmetadata: {name: one}\n"
        f'spec: {{timeBudgetSeconds: 9, maxReplicas: 2, adaptation: {{mode: "{mode}"}}}}\n'
    )
    return parse_jobs(text, "job.yaml")[0]


def adaptation(**values: Any) -> Adaptation:
    told = {
        "decision_id": "d",
        "time": NOW,
        "used_seconds": 1,
        "trigger": "ExtraGPUsGranted",
        "generation": 2,
        "action": "Nothing",
        "source": AdaptationSource.AGENT,
        "policy": "default@1",
        "result": AdaptationResult.DECLINED,
        "depth_before": 4,
        "depth_after": 4,
        "parameters_before": 9,
        "parameters_after": 9,
        "seconds": 0.1,
    }
    return Adaptation(**(told | values))


def result(*adaptations: Adaptation, replicas: int = 2, **values: Any) -> RunResult:
    lent = AllocationRecord(time=NOW, used_seconds=1, allocation=Allocation(generation=2, replicas=replicas, gpus=1))
    told = {"job": "default/one", "seed": 0, "phase": "Complete", "reason": "BudgetExhausted", "time_budget_seconds": 9}
    told |= {"used_seconds": 9, "depth_before": 4, "depth_after": 4, "allocations": (lent,)}
    return RunResult(**(told | values), adaptations=adaptations)


TRIED = adaptation(message="validation loss when tried: ...", arms=(Arm(action="Nothing", loss=1.0),))
FAILED = adaptation(action="Deepen(a)", result=AdaptationResult.FAILED, message="no room")
NO_AGENT = adaptation(source=AdaptationSource.FALLBACK, policy="None")


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (result(adaptation(), adaptation()), "default@1 advised 2 times against it; adaptation.trials: Race tries it"),
        (result(TRIED), "tried once, no growth was better (validation loss when tried: ...)"),
        (result(FAILED), "Deepen(a) failed: no room"),
        (result(NO_AGENT), "no agent answered, and the fallback None advised Nothing"),
        (result(replicas=1), "no extra GPU was lent to it (minReplicas 1, maxReplicas 2)"),
        (result(), "it ended before the agent answered"),
        (result(cannot_grow="its layers are tied"), "its layers are tied"),
    ],
)
def test_a_run_that_did_not_grow_says_why(found: RunResult, says: str) -> None:
    assert why_not_grown(found, job()).startswith(f"it did not grow: {says}")


def test_a_run_that_grew_or_did_not_ask_for_it_says_nothing() -> None:
    grown = adaptation(action="Deepen(a)", result=AdaptationResult.GROWN)
    assert why_not_grown(result(grown, adaptation()), job()) == ""
    assert why_not_grown(result(adaptation()), job("Off")) == ""
    assert "adaptation.mode is DryRun" in why_not_grown(result(adaptation()), job("DryRun"))
