"""What Espalier is for, on real pods: a job grows into GPUs that become free, and gives them back."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import yaml
from kube import Nodes, Space, digits, kubectl, wait_for, waiting

PROJECT = Path(__file__).parents[3]
BUDGET = 60.0
"""Seconds: several times what an extra worker takes to start on a busy machine."""


def test_the_example_grows_when_another_job_ends(space: Space, nodes: Nodes) -> None:
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


def test_lent_gpus_go_to_a_second_job(space: Space, nodes: Nodes) -> None:
    nodes.set_gpus(2)
    space.apply(digits("holder", budget=300))
    space.wait_extra("holder", 1)
    wait_for(
        "the extra worker runs",
        lambda: [pod for pod in space.pods("holder", "extra") if pod["status"]["phase"] == "Running"],
    )
    space.apply(waiting("second", timeBudgetSeconds=15))
    space.wait_condition("second", "Running")
    wait_for(
        "there was notice",
        lambda: "holder" in [event["involvedObject"]["name"] for event in space.events("NeededByOtherJob")],
    )
    assert not space.events("ReclaimForced"), "it should have given back before the deadline"
    status = space.status("holder")
    assert status["preemptions"] == 0
    assert status["scheduling"]["extra"] == 0
    assert space.report("holder")["acknowledgedGeneration"] >= status["allocation"]["generation"] - 1
    space.wait_condition("second", "Complete")
    # What the second job leaves is lent to the first again.
    space.wait_extra("holder", 1)
