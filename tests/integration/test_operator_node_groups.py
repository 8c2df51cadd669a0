"""Jobs on a cluster whose nodes are added by a script that looks at pods, as an autoscaler does."""

from __future__ import annotations

import json

from operators import World

from espalier_operator.kube.objects.worker_pod import DELETION_COST


def test_a_job_asks_for_a_node_starts_on_it_and_leaves_it_when_it_is_about_to_go(world: World) -> None:
    pool = f"pool-{world.namespace}"
    group = {"name": "big", "labels": {"pool": pool}, "gpus": 2, "maxNodes": 1}
    world.operate(node_groups=(json.dumps(group),), placement_seconds=1.0)
    world.jobs.make("one", minReplicas=2, maxReplicas=2, preemption={"base": "Checkpoint", "noticeSeconds": 1})
    world.until_condition("one", "Admitted", "False", "NodesRequested")
    waiting = world.until("its pods wait", lambda: len(found := world.pods("one")) == 2 and found)
    assert [pod["spec"]["nodeSelector"] for pod in waiting.values()] == [{"pool": pool}] * 2
    assert {pod["metadata"]["annotations"][DELETION_COST] for pod in waiting.values()} == {"1000", "100"}
    world.jobs.make("two", minReplicas=3, maxReplicas=3)
    world.until_condition("two", "Admitted", "False", "TooLarge")
    world.kubelet.add_node("big-1", 2, labels={"pool": pool})  # what an autoscaler does for such pods
    world.until_condition("one", "Running", "True", "Running")
    assert world.jobs.status("one")["timeBudget"]["usedSeconds"] < 60.0
    taint = {"key": "ToBeDeletedByClusterAutoscaler", "value": "1", "effect": "NoSchedule"}
    world.server.request("PATCH", "/api/v1/nodes/big-1", {"spec": {"taints": [taint]}})
    world.until_condition("one", "Admitted", "False", "NodesRequested", 120.0)
