"""What limits a job on real clusters: quotas of namespaces and queues, nodes that go, growths that are tried first."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from kube import GPU, Nodes, Space, digits, get, kubectl, wait_for

LENDING = {"noticeSeconds": 10, "cooldownSeconds": 1, "minRuntimeSeconds": 1}


@contextlib.contextmanager
def queue(name: str, nominal: int) -> Iterator[None]:
    """Make a queue of `nominal` GPUs, and one without limits for the jobs of other tests, which name none."""

    def of(name: str, spec: Mapping[str, Any]) -> str:
        body = {"apiVersion": "espalier.dev/v1alpha1", "kind": "Queue", "metadata": {"name": name}, "spec": spec}
        return json.dumps(body)

    kubectl("apply", "--filename=-", text=of("default", {}))
    try:
        kubectl("apply", "--filename=-", text=of(name, {"quotas": [{"nominal": nominal}]}))
        yield
    finally:  # in this order: without queues nothing is limited
        kubectl("delete", "queue", name, "--ignore-not-found")
        kubectl("delete", "queue", "default")


def test_quotas_of_the_namespace_and_of_the_queue_limit_jobs(space: Space, nodes: Nodes) -> None:
    """What waits says for which of them; what is lent is given back for a base worker that only then fits."""
    nodes.set_gpus(4)
    kubectl("create", "quota", "gpus", f"--hard=requests.{GPU}=2", "--namespace", space.name)
    with queue(space.name, 1):
        space.apply(digits("first", budget=300, maxReplicas=3, queue=space.name))
        space.wait_extra("first", 1, 90)
        space.apply(digits("second", budget=300, maxReplicas=1, queue=space.name))
        wait_for("it waits", lambda: space.condition("second", "Admitted").get("reason") == "QuotaExceeded")

        def status() -> dict[str, Any]:
            found: dict[str, Any] = get("queues", space.name).get("status", {})
            return found

        wait_for("both count", lambda: (status().get("admittedJobs"), status().get("pendingJobs")) == (1, 1), 30)
        assert status()["usage"] == [{"nominal": 1, "used": 1, "borrowed": 0}]
        kubectl("patch", "queue", space.name, "--type=merge", "--patch", '{"spec": {"quotas": [{"nominal": 5}]}}')
        space.wait_condition("second", "Running", 90)
        assert space.status("first")["scheduling"]["extra"] == 0
        assert space.status("first")["preemptions"] == 0
        space.apply(digits("third", budget=300, minReplicas=3, maxReplicas=3, queue=space.name))
        wait_for("it waits", lambda: space.condition("third", "Admitted").get("reason") == "ResourceQuotaExceeded")
        assert not space.pods("third")
        wait_for("two are admitted", lambda: status()["usage"] == [{"nominal": 5, "used": 2, "borrowed": 0}], 30)


@pytest.mark.nodes(2)
def test_work_moves_with_notice_from_a_node_that_is_about_to_go(space: Space, nodes: Nodes) -> None:
    nodes.set_gpus(2, 0)
    going, stays = nodes.names
    space.apply(digits("moves", budget=300, preemption={"base": "Checkpoint", **LENDING}))
    space.wait_extra("moves", 1, 90)
    nodes.set_gpus(2, 1)
    kubectl("taint", "node", going, "ToBeDeletedByClusterAutoscaler=1:NoSchedule")
    try:
        wait_for("it runs elsewhere", lambda: _node(space, "moves") == stays, 120)
        space.trains_on("moves")
    finally:
        kubectl("taint", "node", going, "ToBeDeletedByClusterAutoscaler-")
    status = space.status("moves")
    assert (status["restarts"], status["preemptions"]) == (0, 0), "it was asked, and ended by itself"
    assert not space.events("ReclaimForced")


@pytest.mark.without_agent
def test_a_growth_is_tried_on_a_lent_gpu_before_it_is_carried_out(space: Space, nodes: Nodes) -> None:
    nodes.set_gpus(3)
    adaptation = {"trials": "Confirm", "maxAdaptations": 1, "fallback": "Heuristic", "decisionTimeoutSeconds": 1}
    training = {"elasticBatch": "keepGlobal", "schedule": {"name": "Constant"}}
    # Advice waits for workers that start for a tenth of the budget, and a trial takes a tenth of what is left.
    space.apply(digits("tries", budget=150, maxReplicas=3, adaptation=adaptation, training=training))
    wait_for("it has decided", lambda: space.status("tries").get("adaptations"), 180)
    (decided,) = space.status("tries")["adaptations"]
    losses = {arm["action"]: arm.get("loss") for arm in decided["arms"]}
    assert len(losses) == 2, decided
    better = losses[decided["action"]] < losses["Nothing"]
    assert (decided["result"], decided.get("reason")) == (
        ("Grown", None) if better else ("Declined", "TrialNotBetter")
    ), decided


def _node(space: Space, job: str) -> str | None:
    leader = space.leader(job)
    return None if leader is None else str(leader["spec"]["nodeName"])
