"""Device plugins that fail: where jobs run then, and what they keep."""

from __future__ import annotations

from typing import Any

import pytest
from kube import GPU, Nodes, Space, devices, digits, get, pods_of, wait_for


def sleeps(name: str, seconds: int) -> dict[str, Any]:
    """Return a program that takes a GPU for so long."""
    container = {
        "name": "own",
        "image": pods_of("operator")[0]["spec"]["containers"][0]["image"],
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "-c", f"import time; time.sleep({seconds})"],
        "resources": {"limits": {GPU: "1"}},
    }
    spec = {"timeBudgetSeconds": 300, "program": {}, "template": {"spec": {"containers": [container]}}}
    kind = {"apiVersion": "espalier.dev/v1alpha1", "kind": "AdaptiveTrainingJob"}
    return {**kind, "metadata": {"name": name}, "spec": spec}


@pytest.mark.nodes(2)
def test_a_node_that_refuses_pods_is_avoided_and_the_job_says_why(space: Space, nodes: Nodes) -> None:
    broken, good = nodes.names
    nodes.set_gpus(1, 2)  # the fuller node comes first
    devices(broken, "fail", "a GPU has fallen off the bus")
    try:
        space.apply(sleeps("first", 300))
        running = wait_for("it runs", lambda: space.leader("first"))
        assert running["spec"]["nodeName"] == good
        (avoided,) = space.status("first")["scheduling"]["avoidedNodes"]
        assert (avoided["node"], avoided["times"]) == (broken, 1)
        assert "a GPU has fallen off the bus" in avoided["message"]
        assert space.status("first")["preemptions"] == 0
        events = wait_for("an Event", lambda: space.events("NodesAvoided"))
        assert "a GPU has fallen off the bus" in events[0]["message"]

        space.apply(sleeps("second", 300))
        wait_for("another runs there", lambda: space.leader("second"))
        space.apply(sleeps("third", 5))
        wait_for("only that node is left", lambda: space.status("third").get("scheduling", {}).get("avoidedNodes"))
    finally:
        devices(broken, "work")
    assert space.wait_condition("third", "Complete")["reason"] == "Completed", "it is tried again"


def test_a_device_plugin_that_restarts_takes_no_lent_worker(space: Space, nodes: Nodes) -> None:
    (name,) = nodes.names
    nodes.set_gpus(2)
    space.apply(digits("lent", budget=600))
    space.wait_extra("lent", 1)
    wait_for("both run", lambda: [pod["status"]["phase"] for pod in space.pods("lent")] == ["Running"] * 2)

    def allocatable() -> str:
        return str(get("nodes", name)["status"]["allocatable"][GPU])

    devices(name, "restart", "12")
    wait_for("the kubelet has no GPU", lambda: allocatable() == "0", every=0.1)
    wait_for("the plugin is back", lambda: allocatable() == "2")
    space.trains_on("lent")
    assert space.status("lent")["scheduling"]["extra"] == 1
    assert not space.events("GPULost")
