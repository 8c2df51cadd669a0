"""A node that goes away: the budget is kept, and the work too."""

from __future__ import annotations

import pytest
from kube import Nodes, Space, digits, gpus, operator_node, wait_for


@pytest.mark.nodes(2)
@pytest.mark.disturbs(agent=True)
def test_a_lost_node_costs_no_budget(space: Space, nodes: Nodes) -> None:
    # Not the operator's own node: that it comes back elsewhere takes longer and is Kubernetes' doing.
    lost, other = sorted(nodes.names, key=lambda name: name == operator_node())
    gpus(lost, 1)
    # Until the node is known to be lost, which takes Kubernetes most of a minute, its leader counts as running.
    unreachable = {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute"}
    trainer = {"name": "trainer", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    template = {"spec": {"containers": [trainer], "tolerations": [{**unreachable, "tolerationSeconds": 5}]}}
    space.apply(digits("survivor", budget=80, maxReplicas=1, template=template))
    space.wait_condition("survivor", "Running")
    gpus(other, 1)
    with nodes.frozen(lost):
        wait_for("the node is not ready", lambda: not nodes.ready(lost))
        successor = wait_for(
            "a leader elsewhere",
            lambda: (found := space.leader("survivor")) and found["spec"]["nodeName"] != lost and found,
        )
        used = space.status("survivor")["timeBudget"]["usedSeconds"]
        complete = space.wait_condition("survivor", "Complete")
    assert complete["reason"] == "BudgetExhausted"
    status = space.status("survivor")
    assert status["preemptions"] == 1
    assert status["timeBudget"]["usedSeconds"] >= used
    assert successor["metadata"]["labels"]["espalier.dev/attempt"] == "1"
