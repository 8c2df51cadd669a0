"""What other tenants of the cluster do, and nodes that are not for everybody: jobs neither suffer nor wait for it."""

from __future__ import annotations

from functools import partial

import pytest
from kube import GPU, Nodes, Space, digits, get, kubectl, stranger, wait_for

IMAGE = "localhost/no-such-image:none"
"""Of pods that never run."""
pytestmark = pytest.mark.without("agent")


@pytest.mark.nodes(2)
def test_small_jobs_share_a_node_and_pods_that_fit_nowhere_hold_nobody_back(space: Space, nodes: Nodes) -> None:
    """kube-scheduler alone would put the second job on the empty node, where a larger one starts."""
    nodes.set_gpus(2, 2)
    unfit = ("unfit-0", "unfit-1")
    for name in unfit:
        pod = stranger(IMAGE, nodeSelector={"disk": "tape"})
        space.apply({**pod, "metadata": {"name": name}})
    wait_for("kube-scheduler has refused them", lambda: all(_is_refused(space, name) for name in unfit))
    for name in ("first", "second"):
        space.apply(digits(name, budget=120, maxReplicas=1))
    leaders = [wait_for("it is bound", partial(_bound_leader, space, name)) for name in ("first", "second")]
    assert leaders[0] == leaders[1]
    worker = {"name": "trainer", "resources": {"limits": {GPU: 2}}}
    space.apply(digits("large", budget=120, maxReplicas=1, template={"spec": {"containers": [worker]}}))
    assert wait_for("large is bound", partial(_bound_leader, space, "large")) != leaders[0]
    kubectl("delete", "atj", "large", "--namespace", space.name)
    space.apply(digits("job", budget=120))
    space.wait_condition("job", "Running")
    space.wait_extra("job", 1)


def _bound_leader(space: Space, job: str) -> str | None:
    """Return the node of the job's leader; None as long as it is not bound to one."""
    return next((pod["spec"]["nodeName"] for pod in space.pods(job) if "nodeName" in pod["spec"]), None)


def _is_refused(space: Space, pod: str) -> bool:
    conditions = get("pods", pod, namespace=space.name)["status"].get("conditions", ())
    return any(entry["type"] == "PodScheduled" and entry.get("reason") == "Unschedulable" for entry in conditions)
