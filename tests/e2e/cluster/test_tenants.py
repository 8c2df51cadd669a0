"""What other tenants of the cluster do, and nodes that are not for everybody: jobs neither suffer nor wait for it."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from kube import GPU, ClusterError, Nodes, Space, digits, get, kubectl, stranger, wait_for

IMAGE = "localhost/no-such-image:none"
"""Of pods that never run."""
pytestmark = pytest.mark.without_agent


def test_another_tenant_cannot_end_a_leader(space: Space, nodes: Nodes) -> None:
    """A pod in another namespace says that it is the job's leader, and fails."""
    nodes.set_gpus(1)
    space.apply(digits("victim", budget=120, maxReplicas=1))
    space.wait_condition("victim", "Running")
    leader = wait_for("its leader", lambda: space.leader("victim"))
    evil = Space(f"{space.name}-evil")
    kubectl("create", "namespace", evil.name)
    try:
        evil.apply(_forged(leader, ["python", "-c", "raise SystemExit(2)"]))
        # The garbage collector deletes it soon: its owner is not in its namespace.
        wait_for("the forged pod has ended", lambda: _has_ended(evil, leader["metadata"]["name"]))
        space.trains_on("victim")
    finally:
        kubectl("delete", "namespace", evil.name, "--wait=false")
    after = space.leader("victim")
    assert after is not None
    assert after["metadata"]["uid"] == leader["metadata"]["uid"]
    status = space.status("victim")
    assert (status["restarts"], status["preemptions"]) == (0, 0)


def test_pods_that_fit_nowhere_hold_nobody_back(space: Space, nodes: Nodes) -> None:
    nodes.set_gpus(2)
    for name in ("first", "second"):
        pod = stranger(IMAGE, nodeSelector={"disk": "tape"})
        space.apply({**pod, "metadata": {"name": name}})
    wait_for("kube-scheduler has refused them", lambda: all(_is_refused(space, name) for name in ("first", "second")))
    space.apply(digits("job", budget=120))
    space.wait_condition("job", "Running")
    space.wait_extra("job", 1)


@pytest.mark.nodes(2)
def test_small_jobs_share_a_node_so_that_a_larger_one_starts(space: Space, nodes: Nodes) -> None:
    """kube-scheduler alone puts the second job on the empty node."""
    nodes.set_gpus(2, 2)
    for name in ("first", "second"):
        space.apply(digits(name, budget=120, maxReplicas=1))
    leaders = [wait_for("it is bound", partial(_bound_leader, space, name)) for name in ("first", "second")]
    assert leaders[0] == leaders[1]
    worker = {"name": "trainer", "resources": {"limits": {GPU: 2}}}
    space.apply(digits("large", budget=120, maxReplicas=1, template={"spec": {"containers": [worker]}}))
    assert wait_for("large is bound", partial(_bound_leader, space, "large")) != leaders[0]


def _bound_leader(space: Space, job: str) -> str | None:
    """Return the node of the job's leader; None as long as it is not bound to one."""
    return next((pod["spec"]["nodeName"] for pod in space.pods(job) if "nodeName" in pod["spec"]), None)


def _forged(leader: dict[str, Any], command: list[str]) -> dict[str, Any]:
    """Return a pod that claims to be the leader whose pod is `leader`."""
    metadata = leader["metadata"]
    container = {"name": "trainer", "image": leader["spec"]["containers"][0]["image"], "command": command}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {key: metadata[key] for key in ("name", "labels", "ownerReferences")},
        "spec": {"restartPolicy": "Never", "containers": [{**container, "imagePullPolicy": "IfNotPresent"}]},
    }


def _has_ended(space: Space, pod: str) -> bool:
    try:
        return space.phase(pod) == "Failed"
    except ClusterError:
        return True  # gone


def _is_refused(space: Space, pod: str) -> bool:
    conditions = get("pods", pod, namespace=space.name)["status"].get("conditions", ())
    return any(entry["type"] == "PodScheduled" and entry.get("reason") == "Unschedulable" for entry in conditions)
