"""Several GPU resources, and nodes that are about to go, on a real API server."""

from __future__ import annotations

from typing import Any

from operators import World

from espalier_core.types.pod_template import DEFAULT_GPU_RESOURCE

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
