"""What Espalier is for, on real pods: a job grows into a GPU that becomes free, and every part tells of it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import yaml
from kube import SYSTEM, ClusterError, Nodes, Space, get_raw, kubectl, pods_of, wait_for, waiting
from prometheus_client.parser import text_string_to_metric_families

PROJECT = Path(__file__).parents[3]
BUDGET = 60.0
"""Seconds: several times what an extra worker takes to start on a busy machine."""
Samples = Mapping[tuple[str, frozenset[str]], float]


def scrape(namespace: str, pod: str, port: int) -> Samples:
    """Return what a pod's `/metrics` says through the API server, by name and set of label values; empty: nothing."""
    try:
        text = get_raw(f"/api/v1/namespaces/{namespace}/pods/{pod}:{port}/proxy/metrics")
    except ClusterError:
        return {}
    return {
        (sample.name, frozenset(sample.labels.values())): sample.value
        for metric in text_string_to_metric_families(text)
        for sample in metric.samples
    }


def total(samples: Samples, name: str) -> float:
    """Return the sum over all series of a metric."""
    return sum(value for (found, _), value in samples.items() if found == name)


def test_the_example_grows_when_another_job_ends_and_all_parts_tell_of_it(space: Space, nodes: Nodes) -> None:
    operator, agent = (pods_of(part)[0]["metadata"]["name"] for part in ("operator", "agent"))
    advised = total(scrape(SYSTEM, agent, 8080), "espalier_agent_advice_total")
    nodes.set_gpus(2)
    space.apply(waiting("first"))
    example = yaml.safe_load((PROJECT / "examples" / "digits.yaml").read_text())
    # The example's 20 s may pass on a busy machine before the extra worker has started.
    space.apply(example | {"spec": example["spec"] | {"timeBudgetSeconds": BUDGET}})
    space.wait_condition("first", "Running")
    space.wait_condition("digits", "Running")
    assert space.status("digits")["scheduling"]["extra"] == 0, "there is no GPU to lend yet"
    # Not by its budget: how far apart the two start depends on the load.
    first_end = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    kubectl("delete", "atj", "first", "--namespace", space.name, "--wait=false")

    wait_for("it has grown", lambda: space.status("digits").get("adaptationCount"))

    leader = space.leader("digits")
    assert leader is not None
    trained = wait_for(
        "the leader's metrics tell of a growth",
        lambda: (
            (found := scrape(space.name, leader["metadata"]["name"], 9464))
            and ("espalier_trainer_adaptation_seconds_count", frozenset({"Grown"})) in found
            and found
        ),
    )
    assert total(trained, "espalier_trainer_step_seconds_count") > 10
    assert 0 < total(trained, "espalier_trainer_budget_left_seconds") < BUDGET
    assert total(scrape(SYSTEM, agent, 8080), "espalier_agent_advice_total") > advised

    place = frozenset({space.name, "digits"})
    seen = scrape(SYSTEM, operator, 8080)
    assert seen["espalier_operator_leader", frozenset()] == 1
    assert seen["espalier_job_time_budget_seconds", place] == BUDGET
    assert seen["espalier_job_adaptations_total", place] >= 1
    assert seen["espalier_job_gpus", place | {"base"}] == 1
    assert seen["espalier_job_gpus", place | {"extra"}] == 1
    lent = seen["espalier_gpus_lent_total", frozenset({space.name, "default"})]
    assert lent >= 1
    for stage in ("written", "acknowledged"):
        assert seen["espalier_signal_seconds_count", frozenset({stage})] >= 1

    complete = space.wait_condition("digits", "Complete")
    assert complete["reason"] == "BudgetExhausted"
    status = space.status("digits")
    grown = [entry for entry in status["adaptations"] if entry["result"] == "Grown"]
    assert grown, "it did not grow"
    assert grown[0]["source"] == "agent"
    assert status["adaptationCount"] == len(grown)
    assert status["training"]["depth"] == grown[-1]["depthAfter"] > grown[0]["depthBefore"]
    assert grown[0]["time"] > first_end, "the GPU came from the job that ended"
    budget = status["timeBudget"]
    assert BUDGET - 2 <= budget["usedSeconds"] <= BUDGET + 10, "the budget, and at most the grace to evaluate"
    assert budget["gpuSecondsUsed"] > budget["usedSeconds"]
    metrics = {entry["name"]: entry["value"] for entry in status["training"]["metrics"]}
    assert metrics["test_accuracy"] > 0.5

    story = kubectl("get", "atj", "digits", "--namespace", space.name, "--output=wide")
    for word in (
        "PHASE",
        "GPUS",
        "EXTRA",
        "DEPTH",
        "ADAPTATIONS",
        "BUDGET-LEFT",
        "AGE",
        "RESTARTS",
        "QUEUE",
        "Complete",
    ):
        assert word in story, story

    ended = frozenset({space.name, "default", "Complete", "BudgetExhausted"})
    assert scrape(SYSTEM, operator, 8080)["espalier_jobs_finished_total", ended] == 1
    kubectl("delete", "atj", "digits", "--namespace", space.name)
    wait_for(
        "its series are gone",
        lambda: not [labels for _, labels in scrape(SYSTEM, operator, 8080) if place <= labels],
    )
