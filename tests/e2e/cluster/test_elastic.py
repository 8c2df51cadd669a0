"""Workers on real pods that train together: they join, leave and die, and training continues."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from kube import Nodes, Space, digits, kubectl, stranger, wait_for, waiting

pytestmark = pytest.mark.without_agent


def elastic(name: str, most: int = 2, **training: Any) -> dict[str, Any]:
    return digits(
        name,
        budget=300,
        maxReplicas=most,
        adaptation={"mode": "Off"},
        # Longer than the test: what a new leader knows it has from the other worker.
        checkpoint={"path": "/checkpoints", "intervalSeconds": 3600},
        training={"elasticBatch": "keepGlobal", "schedule": {"name": "Constant"}, **training},
    )


def step(space: Space, job: str) -> int:
    return int(space.report(job).get("step", 0))


def loss(space: Space, job: str) -> float:
    return float({entry["name"]: entry["value"] for entry in space.report(job)["metrics"]}["train_loss"])


@contextlib.contextmanager
def precious(name: str) -> Iterator[str]:
    """Give a PriorityClass far above that of extra workers; it preempts, as is Kubernetes' default."""
    kubectl("create", "priorityclass", name, "--value=1000000")
    try:
        yield name
    finally:
        kubectl("delete", "priorityclass", name)


def two_train(space: Space, nodes: Nodes, manifest: dict[str, Any]) -> dict[str, Any]:
    """Start a job beside one spare GPU, and wait until two of its workers train together; returns the leader's pod."""
    name = manifest["metadata"]["name"]
    nodes.set_gpus(2)
    space.apply(manifest)
    space.wait_extra(name, 1)
    wait_for("two train together", lambda: space.training(name) == 2)
    space.trains_on(name)
    leader = space.leader(name)
    assert leader is not None
    return leader


@pytest.mark.nodes(2)
def test_pods_train_together_and_part_with_notice(space: Space, nodes: Nodes) -> None:
    nodes.set_gpus(1, 0)
    space.apply(elastic("together"))
    space.wait_condition("together", "Running")
    space.trains_on("together")
    nodes.set_gpus(1, 1)
    space.wait_extra("together", 1)
    wait_for("two train together", lambda: space.training("together") == 2)
    space.trains_on("together")
    before = loss(space, "together")

    space.apply(waiting("second"))
    space.wait_condition("second", "Running")
    assert not space.events("ReclaimForced"), "it should have given back before the deadline"
    wait_for("it reports that it trains alone", lambda: space.training("together") == 1)
    space.trains_on("together")
    assert loss(space, "together") < 1.2 * before + 0.1, "the loss jumped when a worker left"
    status = space.status("together")
    assert (status["restarts"], status["preemptions"]) == (0, 0)


def test_a_pod_that_kube_scheduler_evicts_is_missed_no_more(space: Space, nodes: Nodes) -> None:
    """A pod of others whose priority is higher takes the GPU of an extra worker, at once and without notice."""
    leader = two_train(space, nodes, elastic("together"))
    extra = space.pods("together", "extra")[0]
    before = loss(space, "together")
    with precious(f"precious-{space.name}") as priority:
        image = leader["spec"]["containers"][0]["image"]
        space.apply(stranger(image, priorityClassName=priority))
        wait_for("the stranger runs", lambda: space.phase("stranger") == "Running")
        wait_for("it trains alone", lambda: space.training("together") == 1)
        space.trains_on("together")
        evicted = [event["involvedObject"]["name"] for event in space.events("Preempted")]
        assert evicted == [extra["metadata"]["name"]], "kube-scheduler itself has evicted the worker"
        still = space.leader("together")
        assert still is not None
        assert still["metadata"]["uid"] == leader["metadata"]["uid"]
        assert space.status("together")["restarts"] == 0
        assert loss(space, "together") < 1.2 * before + 0.1, "the loss jumped when a worker was lost"
        kubectl("delete", "pod", "stranger", "--namespace", space.name)
        wait_for("a new worker has joined", lambda: space.training("together") == 2)
        space.trains_on("together")
    assert space.status("together")["restarts"] == 0
