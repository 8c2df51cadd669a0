"""What limits a job on real clusters: quotas of namespaces and queues, nodes that are about to go.

The jobs are programs that only wait: what is tested happens before and around training.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from kube import GPU, Nodes, Space, get, kubectl, wait_for, waiting

pytestmark = pytest.mark.without_agent


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
    """What waits says for which of them, and the queue's status counts."""
    nodes.set_gpus(4)
    kubectl("create", "quota", "gpus", f"--hard=requests.{GPU}=2", "--namespace", space.name)

    def reason(job: str) -> Any:
        return space.condition(job, "Admitted").get("reason")

    with queue(space.name, 1):
        space.apply(waiting("first", queue=space.name))
        space.wait_condition("first", "Running")
        space.apply(waiting("second", queue=space.name))
        wait_for("it waits", lambda: reason("second") == "QuotaExceeded")

        def status() -> dict[str, Any]:
            found: dict[str, Any] = get("queues", space.name).get("status", {})
            return found

        wait_for("both count", lambda: (status().get("admittedJobs"), status().get("pendingJobs")) == (1, 1))
        assert status()["usage"] == [{"nominal": 1, "used": 1, "borrowed": 0}]
        kubectl("patch", "queue", space.name, "--type=merge", "--patch", '{"spec": {"quotas": [{"nominal": 5}]}}')
        space.wait_condition("second", "Running")
        space.apply(waiting("third", queue=space.name))
        wait_for("it waits", lambda: reason("third") == "ResourceQuotaExceeded")
        assert not space.pods("third")
        wait_for("two are admitted", lambda: status()["usage"] == [{"nominal": 5, "used": 2, "borrowed": 0}])
        kubectl("delete", "quota", "gpus", "--namespace", space.name)
        space.wait_condition("third", "Running")


@pytest.mark.nodes(2)
def test_work_moves_with_notice_from_a_node_that_is_about_to_go(space: Space, nodes: Nodes) -> None:
    """A job that allows it is asked to stop, and runs again elsewhere; one that does not stays where it is."""
    nodes.set_gpus(2, 0)
    going, stays = nodes.names
    notice = {"noticeSeconds": 10, "cooldownSeconds": 1, "minRuntimeSeconds": 1}
    space.apply(waiting("moves", preemption={"base": "Checkpoint", **notice}), waiting("keeps"))
    for job in ("moves", "keeps"):
        space.wait_condition(job, "Running")
    nodes.set_gpus(2, 1)
    kubectl("taint", "node", going, "ToBeDeletedByClusterAutoscaler=1:NoSchedule")
    try:
        wait_for("it runs elsewhere", lambda: _node(space, "moves") == stays)
        space.wait_condition("moves", "Running")
    finally:
        kubectl("taint", "node", going, "ToBeDeletedByClusterAutoscaler-")
    status = space.status("moves")
    assert (status["restarts"], status["preemptions"]) == (0, 0), "it was asked, and ended by itself"
    assert _node(space, "keeps") == going
    assert space.status("keeps")["restarts"] == 0


def _node(space: Space, job: str) -> Any:
    """Return the node that the leader of a job runs on."""
    leader = space.leader(job)
    return None if leader is None or leader["status"]["phase"] != "Running" else leader["spec"]["nodeName"]
