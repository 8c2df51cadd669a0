"""Workers on real pods that train together: they join, leave and die, and training continues."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from kube import Nodes, Space, digits, kubectl, stranger, wait_for, waiting

pytestmark = pytest.mark.without("agent")


def elastic(name: str, most: int = 2, **training: Any) -> dict[str, Any]:
    return digits(
        name,
        budget=600,
        maxReplicas=most,
        adaptation={"mode": "Off"},
        # Longer than the test: what a new leader knows it has from the other worker.
        checkpoint={"path": "/checkpoints", "intervalSeconds": 3600},
        training={"elasticBatch": "keepGlobal", "schedule": {"name": "Constant"}, **training},
    )


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


@pytest.mark.nodes(2)
def test_pods_train_together_part_with_notice_and_outlive_an_eviction(space: Space, nodes: Nodes) -> None:
    nodes.set_gpus(1, 0)
    space.apply(elastic("together"))
    space.wait_condition("together", "Running")
    space.trains_on("together")
    leader = space.leader("together")
    assert leader is not None
    nodes.set_gpus(1, 1)
    space.wait_extra("together", 1)
    wait_for("two train together", lambda: space.training("together") == 2)
    space.trains_on("together")
    before = loss(space, "together")

    space.apply(waiting("second", timeBudgetSeconds=30))
    space.wait_condition("second", "Running")
    wait_for(
        "there was notice",
        lambda: "together" in [event["involvedObject"]["name"] for event in space.events("NeededByOtherJob")],
    )
    assert not space.events("ReclaimForced"), "it should have given back before the deadline"
    wait_for("it reports that it trains alone", lambda: space.training("together") == 1)
    space.trains_on("together")
    assert loss(space, "together") < 1.2 * before + 0.1, "the loss jumped when a worker left"
    status = space.status("together")
    assert (status["restarts"], status["preemptions"]) == (0, 0)
    space.wait_condition("second", "Complete")

    # What the second job leaves is lent to the first again, and a pod of others whose priority is higher takes it, at
    # once and without notice.
    space.wait_extra("together", 1)
    wait_for("two train together again", lambda: space.training("together") == 2)
    space.trains_on("together")
    (extra,) = (pod for pod in space.pods("together", "extra") if pod["status"]["phase"] == "Running")
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
