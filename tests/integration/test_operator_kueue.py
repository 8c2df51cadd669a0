"""The operator beside a real Kueue on a real API server: its kinds, admission, flavors, preemption, release."""

from __future__ import annotations

from typing import Any

import pytest
from kueue_process import KUEUE, KueueProcess
from operators import World

from espalier_core.k8s.resources import RESOURCE_FLAVORS, WORKLOADS

EVICTED = {"base": "Checkpoint", "noticeSeconds": 5, "minRuntimeSeconds": 0, "cooldownSeconds": 0}
POOL = "example.com/pool"


def make(world: World, name: str, **spec: Any) -> None:
    """Make a job whose quota the LocalQueue `team` has."""
    made = world.jobs.make(name, suspend=True, **spec)
    labels = {"kueue.x-k8s.io/queue-name": "team"}
    world.server.request("PATCH", f"{world.jobs.path}/{made['metadata']['name']}", {"metadata": {"labels": labels}})
    world.jobs.change(name, suspend=False)


def workloads(world: World) -> list[dict[str, Any]]:
    """Return the Workloads of jobs."""
    found = world.server.request("GET", f"{KUEUE}/namespaces/{world.namespace}/workloads")["items"]
    return [each for each in found if each["metadata"].get("ownerReferences")]


def test_an_operator_that_starts_without_kueue_notices_it(world: World, request: pytest.FixtureRequest) -> None:
    """The first test: those after it find Kueue's kinds there."""
    world.kubelet.add_node("node", 1)
    operator = world.operate(kueue=True, resync_seconds=2.0)
    make(world, "job")
    world.until_condition("job", "Admitted", "False", "WaitingForKueue")
    world.until("it says why", lambda: "the API server has no Workloads" in world.jobs.message("job", "Admitted"))
    kueue: KueueProcess = request.getfixturevalue("kueue")
    kueue.make_flavor()
    kueue.make_queue(world.namespace, 1)
    world.until_condition("job", "Running", "True", "Running", 60)
    assert operator.operator.store.count(WORKLOADS) == operator.operator.store.count(RESOURCE_FLAVORS) == 1


def test_kueue_admits_a_job_to_a_flavor_preempts_it_and_admits_it_again(world: World, kueue: KueueProcess) -> None:
    toleration = {"key": "reserved", "operator": "Exists", "effect": "NoSchedule"}
    kueue.make_flavor(nodeLabels={POOL: "team"}, tolerations=[toleration])
    kueue.make_queue(world.namespace, 2, preemption={"withinClusterQueue": "LowerPriority"})
    world.kubelet.add_node("other", 4)
    world.kubelet.add_node("node", 2, labels={POOL: "team"})
    world.operate(kueue=True)
    make(world, "job", minReplicas=2, maxReplicas=2, preemption=EVICTED)
    world.until_condition("job", "Running", "True", "Running")
    (workload,) = workloads(world)
    for pod in world.pods("job").values():
        assert pod["spec"]["nodeName"] == "node"
        assert pod["spec"]["nodeSelector"][POOL] == "team"
        assert toleration in pod["spec"]["tolerations"]

    make(world, "waits")
    world.until_condition("waits", "Admitted", "False", "WaitingForKueue")
    world.until("Kueue says why", lambda: "insufficient unused quota" in world.jobs.message("waits", "Admitted"))
    world.jobs.change("waits", suspend=True)

    kueue.make_workload(world.namespace, "stranger", gpus=2, priority=5)
    world.until_event("job", "EvictedByKueue")
    has = lambda: kueue.condition(world.namespace, "stranger", "Admitted").get("status") == "True"  # noqa: E731
    world.until("the stranger has the quota", has)
    world.until_condition("job", "Admitted", "False", "WaitingForKueue")
    assert not world.running("job")
    (again,) = world.until("it asks again", lambda: workloads(world))
    assert again["metadata"]["uid"] != workload["metadata"]["uid"], "it was given back by its deletion"
    world.server.request("DELETE", f"{KUEUE}/namespaces/{world.namespace}/workloads/stranger")
    world.until_condition("job", "Running", "True", "Running")
    world.jobs.change("job", suspend=True)
    world.until("its quota is given back", lambda: not workloads(world))
