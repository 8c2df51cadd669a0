"""What a namespace limits, on a real API server: ResourceQuotas, LimitRanges, and volumes that are bound to nodes."""

from __future__ import annotations

from typing import Any

from operators import World

GPUS = "requests.nvidia.com/gpu"


def set_quota(world: World, **hard: str) -> None:
    """Make the quota of the world's namespace, or change it; nobody else fills in its status here."""
    path = f"/api/v1/namespaces/{world.namespace}/resourcequotas"
    if not world.server.request("GET", path)["items"]:
        world.server.request("POST", path, {"metadata": {"name": "team"}, "spec": {"hard": hard}})
    world.server.request("PATCH", f"{path}/team", {"spec": {"hard": hard}})
    world.server.request("PATCH", f"{path}/team/status", {"status": {"hard": hard, "used": used(world, hard)}})


def used(world: World, hard: dict[str, str]) -> dict[str, str]:
    pods = world.kubelet.pods(world.namespace)
    return {name: str(len(pods)) for name in hard}


def test_a_job_that_the_quota_cannot_admit_waits_with_that_reason_and_others_go_on(world: World) -> None:
    """It holds no GPUs and makes no pods; the API server refuses nothing, because nothing beyond it is tried."""
    world.kubelet.add_node("node", 8)
    operator = world.operate()
    set_quota(world, **{GPUS: "3", "pods": "10"})
    world.until("the quota is known", lambda: operator.operator.store.quotas.mapping())
    world.jobs.make("fits", maxReplicas=4, preemption={"noticeSeconds": 5, "cooldownSeconds": 0})
    world.until("it is lent what the quota leaves", lambda: len(world.running("fits")) == 3)
    world.until_condition("fits", "ExtraGPUsGranted", "True", "ExtraGPUsGranted")
    world.jobs.make("wide", minReplicas=4, maxReplicas=4)
    world.until_condition("wide", "Admitted", "False", "ResourceQuotaExceeded")
    world.jobs.make("small", minReplicas=2, maxReplicas=2)
    world.until("for base workers, what is lent is given back, and gone", lambda: len(world.pods("fits")) == 1)
    set_quota(world, **{GPUS: "3", "pods": "10"})  # nobody counts down here when pods go
    world.until_condition("small", "Running", "True", "Running")
    assert world.jobs.condition("wide", "Admitted") == ("False", "ResourceQuotaExceeded")
    assert world.pods("wide") == {}
    set_quota(world, **{GPUS: "8", "pods": "10"})
    world.until_condition("wide", "Running", "True", "Running")
    assert operator.client.requests["create", "pods", 403] == 0


def test_what_a_limit_range_adds_to_pods_counts_before_they_are_made(world: World) -> None:
    """For quotas and for nodes; the planner knows what the API server will make of a container that names nothing."""
    world.kubelet.add_node("small", 4)
    world.server.request("PATCH", "/api/v1/nodes/small/status", {"status": {"allocatable": {"cpu": "3"}}})
    path, limit = f"/api/v1/namespaces/{world.namespace}/limitranges", {"type": "Container", "default": {"cpu": "2"}}
    world.server.request("POST", path, {"metadata": {"name": "defaults"}, "spec": {"limits": [limit]}})
    operator = world.operate()
    world.until("the defaults are known", lambda: operator.operator.store.inputs.limit_ranges.mapping())
    world.jobs.make("wide", minReplicas=2, maxReplicas=2)
    world.until_condition("wide", "Admitted", "False", "Unschedulable")
    world.jobs.make("one", maxReplicas=1)
    world.until_condition("one", "Running", "True", "Running")
    (pod,) = world.pods("one").values()
    assert pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] == "2"
    set_quota(world, **{"requests.cpu": "1500m"})
    world.until("the quota is known", lambda: operator.operator.store.quotas.mapping())
    less = {**limit, "default": {"cpu": "500m"}}
    world.server.request("PATCH", f"{path}/defaults", {"spec": {"limits": [less]}})
    world.until_condition("wide", "Admitted", "False", "ResourceQuotaExceeded")
    assert operator.client.requests["create", "pods", 403] == 0


def test_a_pod_goes_to_the_node_of_its_volume(world: World) -> None:
    """Once the claim is bound; a job whose volume is on no node that counts waits, and says why."""
    for name, zone in (("here", "a"), ("there", "b")):
        world.kubelet.add_node(name, 2)
        world.server.request("PATCH", f"/api/v1/nodes/{name}", {"metadata": {"labels": {"zone": zone}}})
    volume = f"disk-{world.namespace}"
    in_zone: Any = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}]}]}
    spec = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "hostPath": {"path": "/data"},
        "nodeAffinity": {"required": in_zone},
        "storageClassName": "",
    }
    world.server.request("POST", "/api/v1/persistentvolumes", {"metadata": {"name": volume}, "spec": spec})
    try:
        claim = {
            "accessModes": ["ReadWriteOnce"],
            "volumeName": volume,
            "storageClassName": "",
            "resources": {"requests": {"storage": "1Gi"}},
        }
        path = f"/api/v1/namespaces/{world.namespace}/persistentvolumeclaims"
        world.server.request("POST", path, {"metadata": {"name": "data"}, "spec": claim})
        world.operate()
        mounts = {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]}
        world.jobs.make("job", minReplicas=2, maxReplicas=2, pod=mounts)
        world.until_condition("job", "Running", "True", "Running")
        assert {pod["spec"]["nodeName"] for pod in world.pods("job").values()} == {"there"}
        world.jobs.make("wide", minReplicas=3, maxReplicas=3, pod=mounts)
        world.until_condition("wide", "Admitted", "False", "Unschedulable")
    finally:
        world.server.request("DELETE", f"/api/v1/persistentvolumes/{volume}")
