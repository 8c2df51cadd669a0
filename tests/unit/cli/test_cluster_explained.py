"""`espalier explain`: budgets, GPUs, adaptations and Events, and who may not see everything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from cluster_objects import (
    NOW,
    SETTINGS,
    Object,
    acted,
    adaptation,
    admitted,
    blaming,
    case,
    job,
    lists,
    node,
    on,
    reporting,
    sections,
    stands,
    time,
    training,
)

from espalier_cli.cluster.case import case_of
from espalier_cli.cluster.client import View
from espalier_core.k8s.jobs import event_of
from espalier_core.types.measurements import GradientNoise, Measurements
from espalier_core.types.reasons import Reason
from espalier_core.types.report import Adaptation, AdaptationResult, AdaptationSource, Metric
from espalier_operator.model.actions import Finish


def test_what_a_running_job_came_to_so_far() -> None:
    told = sections(on(node("n", 4, "x"), reports=training(gpuSecondsBudget=1000)))
    assert told["Time budget"] == ("5 min 20 s left of 6 min 40 s.", "80 of 1000 GPU-seconds used.")
    assert told["GPUs"] == (
        "Allocation 2: 2 workers, 2 GPUs of type x, up, ExtraGPUsGranted; acknowledged by its leader.",
        "1 of the workers is lent.",
    )
    assert told["Training"] == ("Epoch 3, step 1,200, accuracy 0.8100, depth 4, 306 parameters; reported 2 s ago.",)
    assert told["Adaptations"] == (
        "At 12 s: default@1 advised Deepen(block0) (Deepen(block0) 0.70, Deepen(block1) 0.20, Nothing 0.10): Grown, "
        "depth 4 -> 5, parameters 306 -> 636, accuracy 0.8100 -> 0.8300, in 0.2 s.",
    )


def test_a_batch_size_that_goodput_chose_is_named() -> None:
    figures = tuple(
        Metric(name=name, value=value) for name, value in (("batch_size", 512), ("learning_rate_factor", 2))
    )
    measured = Measurements(gradient=GradientNoise(squared_norm=1.0, variance=1500.0, samples=9))
    raw = admitted(job("a"), gpu_type="x", at=NOW - 90)
    told = sections(on(node("n", 4, "x"), reports=reporting(raw, age=80, metrics=figures, measurements=measured)))
    assert told["Training"][1] == (
        "Batch size 512, chosen by goodput; learning rate times 2.00; noise scale of the gradients 1,500 examples."
    )


def adapted(*adaptations: Adaptation) -> Mapping[str, Sequence[str]]:
    """What is said of a job with a lent GPU whose leader reports these."""
    raw, *_ = training()
    return sections(on(node("n", 4, "x"), reports=reporting(raw, age=80, acknowledged=2, adaptations=adaptations)))


DECLINED: dict[str, Any] = {
    **{"action": "Nothing", "source": AdaptationSource.FALLBACK, "policy": "None", "probabilities": {}},
    **{"result": AdaptationResult.DECLINED, "reason": Reason.AGENT_UNAVAILABLE, "depth_after": 4},
    "accuracy_after": None,
}
"""What a fallback decided, as other values of an adaptation."""


def test_a_fallback_says_why_it_decided() -> None:
    told = adapted(adaptation(**DECLINED, message="no answer", seconds=5.0))
    assert told["Adaptations"] == (
        "At 12 s: the fallback None advised Nothing: Declined, in 5 s; AgentUnavailable, decided by the fallback "
        "(no answer).",
    )
    assert told["Where it stands"][0].endswith(
        "AgentUnavailable: 1 extra worker; the agent did not answer in time; adaptation.fallback decided: no answer."
    )
    assert told["Where it stands"][1] == "It asks the installation's agent; adaptation.fallback is None."


def test_a_faster_computation_is_shown_and_hides_no_decision_of_the_agent() -> None:
    measured = adaptation(
        **{"action": "Rewrite(3)", "source": AdaptationSource.MEASUREMENT, "policy": "optimise", "probabilities": {}},
        **{"result": AdaptationResult.REWRITTEN, "message": "gain +39.0%", "depth_after": 4},
        **{"accuracy_before": None, "accuracy_after": None},
        **{"step_seconds_before": 0.0025, "step_seconds_after": 0.0018, "largest_error": 2e-16},
    )
    told = adapted(adaptation(**DECLINED, decision_id="d0"), measured)
    assert told["Adaptations"][-1] == (
        "At 12 s: optimise tried Rewrite(3): Rewritten, a step 2.5 -> 1.8 ms, relative error 2.0e-16, in 0.2 s (gain "
        "+39.0%)."
    )
    assert "AgentUnavailable" in told["Where it stands"][0]


def test_a_complete_job_is_shown_in_the_past() -> None:
    raw, *others = training()
    over = acted(raw, Finish(job="default/a", reason=Reason.BUDGET_EXHAUSTED))
    told = sections(on(node("n", 4, "x"), reports=(over, *others)))
    assert told["Where it stands"] == (
        "default/a is Complete, for 0 s. BudgetExhausted: its time budget is used up, which is its normal end.",
    )
    assert told["Time budget"] == ("It used 80 s of 6 min 40 s.",)


def test_the_next_decision_is_shown_where_there_is_one() -> None:
    raw = acted(job("a"), refusal=Reason.NO_FREE_GPU)
    told = sections(case(jobs=[raw], nodes=[node("n", 4, "x")]))["What would change it"]
    assert told[-1] == "As things are now, the scheduler's next decision is that it starts on its base GPUs of type x."


def test_who_may_not_see_the_cluster_is_shown_what_is_missing() -> None:
    raw, leader, said = training()
    view = View(lists(jobs=[raw], pods=[leader], reports=[said]), blind="you need the right to list nodes")
    blind = case_of("default", "a", view, NOW, SETTINGS)
    told = sections(blind)
    assert told["What would change it"][-1] == (
        "The cluster's GPUs could not be read: you need the right to list nodes."
    )
    assert told["GPUs"][0].endswith("acknowledged by its leader.")


def test_no_job_of_that_name_is_no_case() -> None:
    assert case_of("default", "a", View(lists(jobs=[job("b"), job("a", namespace="z")])), NOW, SETTINGS) is None


@pytest.mark.parametrize(
    ("change", "at", "times"),
    [
        ({"lastTimestamp": time(30), "count": 3}, 30, 3),
        ({"eventTime": time(20), "lastTimestamp": None}, 20, 1),
        ({"series": {"count": 5, "lastObservedTime": time(10)}, "eventTime": time(20)}, 10, 5),
        ({}, 90, 1),
    ],
)
def test_events_of_any_age_of_the_api_are_read(change: Object, at: float, times: int) -> None:
    raw = {
        "metadata": {"uid": "e", "name": "e", "creationTimestamp": time(90)},
        "involvedObject": {"name": "a"},
        "reason": "NoFreeGPU",
        "message": "no\nGPUs",
        "type": "Warning",
    }
    event = event_of(raw | change)
    assert (NOW - event.at, event.times, event.message, event.warning) == (at, times, "no GPUs", True)


def test_the_last_events_are_shown_oldest_first() -> None:
    raw = acted(job("a"), refusal=Reason.NO_FREE_GPU)
    events = [
        {
            "metadata": {"uid": f"e{age}", "creationTimestamp": time(age)},
            "involvedObject": {"name": about},
            "reason": "R",
            "message": f"m{age}",
            "type": kind,
            "count": times,
        }
        for age, about, kind, times in [(5, "a", "Normal", 1), (200, "a-base-0-0", "Warning", 2)]
    ]
    told = sections(replace(case(jobs=[raw]), events=tuple(map(event_of, events))))
    assert told["Events"] == ("3 min 20 s ago on a-base-0-0: warning: R: m200 (2 times)", "5 s ago: R: m5")


def test_the_nodes_that_a_job_avoids_are_named_with_their_cause() -> None:
    nodes = {"a": "own", "b": "bad", "c": "bad"}
    jobs = [blaming(name, blamed, refused=True, elsewhere=True) for name, blamed in nodes.items()]
    said = stands(case(jobs=jobs, nodes=[node("n", 3, "x")]))
    assert "It avoids node own for 20 min: Allocate failed." in said
    assert "All jobs avoid node bad for 20 min, which failed 2 jobs: Allocate failed." in said
