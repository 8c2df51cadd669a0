"""Dynamic resource allocation on a real API server. Its objects are recorded, as drivers and kube-scheduler do."""

from __future__ import annotations

from typing import Any

from operators import World

from espalier_core.k8s import resources
from espalier_core.k8s.resources import Resource
from operator_world.kube_devices import (
    CLASS,
    RESOURCE,
    allocation,
    asking,
    claiming,
    raw_claim,
    raw_class,
    raw_slice,
    raw_template,
)

Raw = dict[str, Any]


def record(world: World, resource: Resource, raw: Raw) -> Raw:
    """Make an object as it is, with its status."""
    namespace = world.namespace if resource.namespaced else None
    body = {**raw, "metadata": {**raw["metadata"], **({"namespace": namespace} if namespace else {})}}
    made: Raw = world.server.request("POST", resource.path(namespace), body)
    if raw.get("status"):
        path = resource.path(namespace, raw["metadata"]["name"], "status")
        made = world.server.request("PATCH", path, {"status": raw["status"]})
    return made


def remove(world: World, resource: Resource, name: str) -> None:
    world.server.request("DELETE", resource.path(world.namespace if resource.namespaced else None, name))


def record_claim_of(world: World, pod: Raw, device: str) -> None:
    """Record that a pod got its claim, and that has a device."""
    name, node = f"{pod['metadata']['name']}-gpu", pod["spec"]["nodeName"]
    record(world, resources.RESOURCE_CLAIMS, raw_claim(name, status=allocation(node, [device]), pod=pod))
    statuses = [{"name": "gpu", "resourceClaimName": name}]
    path = resources.PODS.path(world.namespace, pod["metadata"]["name"], "status")
    world.server.request("PATCH", path, {"status": {"resourceClaimStatuses": statuses}})


def free(operator: Any) -> int:
    """Return the devices that nobody has, as the last plan saw it."""
    snapshot = operator.snapshot
    places = {node.name: node.allocatable for node in snapshot.nodes if node.name.endswith(f"/{RESOURCE}")}
    return sum(places.values()) - sum(each.gpus for each in snapshot.workers if each.node in places)


def test_devices_that_a_jobs_template_claims_are_counted_and_lent(world: World) -> None:
    """A class, a slice, a claim of others: a job gets what is free, another waits, and both run once the claim goes."""
    world.kubelet.add_node("node", 0)
    record(world, resources.DEVICE_CLASSES, raw_class())
    record(world, resources.RESOURCE_SLICES, raw_slice("node", ["a", "b", "c"]))
    record(world, resources.RESOURCE_CLAIMS, raw_claim("theirs", status=allocation("node", ["a"])))
    operator = world.operate(other_gpu_resources=(RESOURCE,), resync_seconds=300.0)
    template = {"spec": claiming(containers=[{**claiming()["containers"][0], "image": "trainer:dev"}])}
    world.jobs.make("first", template=template, maxReplicas=2, preemption={"cooldownSeconds": 0, "noticeSeconds": 1})
    world.until_condition("first", "Admitted", "False", "InvalidSpec")
    record(world, resources.RESOURCE_CLAIM_TEMPLATES, raw_template(asking()))
    world.until_lent("first")
    pods = world.pods("first")
    assert [pod["spec"]["nodeName"] for pod in pods.values()] == ["node", "node"]
    assert world.jobs.status("first")["scheduling"]["gpuType"] == RESOURCE
    for pod, device in zip(pods.values(), ("b", "c"), strict=True):
        assert pod["spec"]["resourceClaims"] == claiming()["resourceClaims"]
        record_claim_of(world, pod, device)
    world.jobs.make("second", template=template, minReplicas=2, maxReplicas=2)
    world.until_condition("second", "Admitted", "False", "NoFreeGPU")
    assert free(operator) == 0, "claims of its own workers are not counted beside them"
    remove(world, resources.RESOURCE_CLAIMS, "theirs")
    # The extra worker is asked back: two devices for two workers.
    world.until("the claim of the extra worker goes with it", lambda: len(world.pods("first")) == 1)
    for name in pods.keys() - world.pods("first").keys():
        remove(world, resources.RESOURCE_CLAIMS, f"{name}-gpu")
    world.until_condition("second", "Running", "True", "Running")
    world.jobs.make("wide", template=template, minReplicas=4, maxReplicas=4)
    world.until_condition("wide", "Admitted", "False", "TooLarge")
    for resource, name in ((resources.RESOURCE_SLICES, f"node-{CLASS}"), (resources.DEVICE_CLASSES, CLASS)):
        remove(world, resource, name)
