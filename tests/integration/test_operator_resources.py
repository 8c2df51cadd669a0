"""Several GPU resources, and nodes that are about to go, on a real API server."""

from __future__ import annotations

from typing import Any

import pytest
from apiserver import ServerError
from operators import World

from espalier_core.types.pod_template import DEFAULT_GPU_RESOURCE
from espalier_operator.kube.settings import CORDONED

AMD, MIG = "amd.com/gpu", "nvidia.com/mig-1g.5gb"


def make(world: World, name: str, resource: str, gpus: int = 1, cpu: str | None = None, **spec: Any) -> None:
    limits = {resource: gpus, **({"cpu": cpu} if cpu else {})}
    container = {"name": "trainer", "image": "trainer:dev", "resources": {"limits": limits}}
    world.jobs.make(name, template={"spec": {"containers": [container]}}, **spec)


def set_resources(world: World, node: str, **amounts: str) -> None:
    status = {"status": {"capacity": amounts, "allocatable": amounts}}
    world.server.request("PATCH", f"/api/v1/nodes/{node}/status", status)


def running_on(world: World, job: str) -> list[str]:
    pods, running = world.pods(job), world.running(job)
    nodes = (pods.get(name, {}).get("spec", {}).get("nodeName") for name in running)
    return sorted(node for node in nodes if node)


def test_each_resource_is_counted_by_itself(world: World) -> None:
    """One machine has whole GPUs and slices, another those of another maker; no job gets what it did not ask for."""
    world.kubelet.add_node("mixed", 1)
    set_resources(world, "mixed", **{DEFAULT_GPU_RESOURCE: "1", MIG: "2", "pods": "20"})
    world.kubelet.add_node("amd", 2, resource=AMD)
    operator = world.operate(other_gpu_resources=(AMD, MIG))
    make(world, "whole", DEFAULT_GPU_RESOURCE)
    make(world, "slices", MIG, minReplicas=2, maxReplicas=2)
    make(world, "other", AMD, minReplicas=1, maxReplicas=4, preemption={"cooldownSeconds": 0})
    for name in ("whole", "slices", "other"):
        world.until_condition(name, "Running", "True", "Running")
    world.until_lent("other")
    assert running_on(world, "whole") == ["mixed"]
    assert running_on(world, "slices") == ["mixed", "mixed"]
    assert running_on(world, "other") == ["amd", "amd"]
    assert world.jobs.status("slices")["scheduling"]["gpuType"] == MIG
    make(world, "second", DEFAULT_GPU_RESOURCE)
    make(world, "third", MIG)
    make(world, "wide", MIG, gpus=3)
    for name, reason in (("second", "NoFreeGPU"), ("third", "NoFreeGPU"), ("wide", "TooLarge")):
        world.until_condition(name, "Admitted", "False", reason)
    assert {node.name for node in operator.snapshot.nodes if node.allocatable} == {
        "mixed",
        f"mixed/{MIG}",
        f"amd/{AMD}",
    }


def test_a_template_with_two_resources_or_none_is_refused_with_the_field(world: World) -> None:
    world.operate(other_gpu_resources=(AMD,))
    container = {"name": "trainer", "image": "trainer:dev"}
    both = container | {"resources": {"limits": {AMD: 1, DEFAULT_GPU_RESOURCE: 1}}}
    world.jobs.make("both", template={"spec": {"containers": [both]}})
    world.until_condition("both", "Admitted", "False", "InvalidSpec")
    conditions = world.jobs.status("both")["conditions"]
    [message] = [each["message"] for each in conditions if each["type"] == "Admitted"]
    assert "spec.template.spec.containers: has limits of nvidia.com/gpu and amd.com/gpu" in message
    shared = {"resourceClaims": [{"name": "gpu", "resourceClaimName": "shared"}]}
    with pytest.raises(ServerError, match="no resourceClaims name a resourceClaimTemplateName"):
        world.jobs.make("shared", template={"spec": {"containers": [container], **shared}})
    claims = {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}]}
    world.jobs.make("claims", template={"spec": {"containers": [container], **claims}})
    world.until_condition("claims", "Admitted", "False", "InvalidSpec")


def test_work_moves_with_notice_from_a_node_that_is_about_to_go(world: World) -> None:
    """Extra workers are asked back, a base that allows it saves and moves, another stays, and nothing new comes."""
    world.kubelet.add_node("going", 3)
    world.operate()
    keep = {"noticeSeconds": 5, "cooldownSeconds": 0, "minRuntimeSeconds": 0}
    world.jobs.make("stays")
    world.until_condition("stays", "Running", "True", "Running")
    world.jobs.make("moves", maxReplicas=2, preemption={"base": "Checkpoint", **keep})
    world.until_lent("moves")
    world.kubelet.add_node("new", 1)
    taint = {"key": "ToBeDeletedByClusterAutoscaler", "value": "1732500000", "effect": "NoSchedule"}
    world.server.request("PATCH", "/api/v1/nodes/going", {"spec": {"taints": [taint]}})
    # An Event of the stop is not asked for: a status that is written late skips it.
    world.until("it moves", lambda: running_on(world, "moves") == ["new"])
    world.until_condition("moves", "Running", "True", "Running")
    status = world.jobs.status("moves")
    assert (status["restarts"], status["preemptions"]) == (0, 0)
    assert running_on(world, "stays") == ["going"]
    world.jobs.make("later")
    world.until_condition("later", "Admitted", "False", "NoFreeGPU")


def test_extra_workers_leave_a_cordoned_node_and_others_can_be_told_to_stay(world: World) -> None:
    world.kubelet.add_node("node", 2)
    operator = world.operate()
    world.jobs.make("job", maxReplicas=2, preemption={"noticeSeconds": 5, "cooldownSeconds": 0, "minRuntimeSeconds": 0})
    world.until_lent("job")
    world.kubelet.cordon("node")
    world.until("it is given back", lambda: world.running("job") == ["job-base-0-0"])
    world.until_event("job", "GPULost", "ReclaimAcknowledged")
    assert CORDONED in operator.settings.departing_nodes
    world.kubelet.cordon("node", False)
    world.until_lent("job")
