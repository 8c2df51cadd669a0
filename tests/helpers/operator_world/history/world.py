"""A cluster that tenants share: namespaces with ResourceQuotas, queues, nodes with taints, CPU and memory, strangers.

It is `Kubernetes` with kube-scheduler's own rules (`kube_scheduler`) in place of the naive ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, Final

from espalier_core.k8s import resources
from espalier_core.k8s.errors import QUOTA_EXCEEDED, Status
from espalier_core.k8s.resources import Resource
from espalier_core.types.job import API_VERSION, KIND
from espalier_operator.job.view import utc
from espalier_operator.kube.client import ApiRefusalError
from operator_world.history.devices import Devices
from operator_world.history.seen import Claimant, claimant
from operator_world.history.webhooks import Webhooks
from operator_world.kube_api import Objects, is_over, node_of, owner_of
from operator_world.kube_devices import QUOTA, RESOURCE
from operator_world.kube_objects import GPU, GPU_RESOURCES, MIG, Raw
from operator_world.kube_operator import KINDS as SEEN
from operator_world.kube_scheduler import KubeScheduler, allocatable_of, amount, requests_of
from operator_world.kubernetes import TYPE_LABEL, Kubernetes

KINDS: Final[Mapping[str, Resource]] = {
    **SEEN,
    "queues": resources.QUEUES,
    "resource_quotas": resources.RESOURCE_QUOTAS,
}
DEFAULTS: Final[Mapping[str, Resource]] = {"limit_ranges": resources.LIMIT_RANGES}
"""A kind of objects of some histories."""
NAMESPACES: Final = ("vision", "speech", "robots")
MAINTENANCE: Final = {"cloud.google.com/active-node-maintenance": "ONGOING"}
"""The label of a node that is about to go. kube-scheduler does not heed it."""
HELD_SECONDS: Final = 30.0
"""For so long the finalizer of somebody else holds a job that is deleted."""


class SharedCluster(Kubernetes):
    """All objects of several tenants."""

    def __init__(self, scheduler: KubeScheduler, random: Random) -> None:
        """Begin empty."""
        super().__init__()
        self._scheduler, self._random = scheduler, random
        self.queues = Objects(self._versions)
        self.resource_quotas, self.limit_ranges = Objects(self._versions), Objects(self._versions)
        self.devices = Devices(self._versions)
        self.device_classes, self.resource_slices = self.devices.classes, self.devices.slices
        self.resource_claim_templates, self.resource_claims = self.devices.templates, self.devices.claims
        self.leave_at: dict[str, float] = {}
        """When pods of others go, by key."""
        self.held_until: dict[str, float] = {}
        """Until when finalizers hold jobs that are deleted, by key."""
        self.webhooks = Webhooks()
        self.over_quota: list[str] = []
        """Pods that a ResourceQuota has refused, by key, though no stranger was faster."""
        self.refusing: dict[str, float] = {}
        """Until when a node refuses pods with GPUs, though it is ready."""
        self.refusals: dict[tuple[Claimant, str], list[float]] = {}
        """By job and node: when it refused workers, since one has started there."""
        self.failed_at: set[tuple[Claimant, str]] = set()
        """A job, and a node that has ever refused one of its workers, or ended one."""
        self.away: dict[tuple[str, str], tuple[float, int]] = {}
        """By node, and resource: until when its device plugin is away, and how many GPUs it has then."""
        self.denials: dict[str, tuple[float, Status]] = {}
        """By namespace: until when a webhook denies its pods, and how."""
        self.denied: dict[str, float] = {}
        """Pods that it has denied and that are still not there, by key; when it last did."""
        self.strangers_claimed: set[str] = set()
        """Namespaces in which claims of strangers' pods that had waited for a ResourceQuota were made."""

    def add_machine(
        self,
        name: str,
        gpus: int,
        cpus: int,
        labels: Mapping[str, str],
        taints: Sequence[Raw],
        slices: int = 0,
        devices: int = 0,
    ) -> None:
        """Add a node, ready at once."""
        self.devices.publish(name, devices)
        self.add_node(name, gpus)
        node = self.nodes[name]
        amounts = {"cpu": str(cpus), "memory": "64Gi", "pods": "40", GPU: str(gpus)}
        amounts |= {MIG: str(slices)} if slices else {}
        self.nodes[name] = {
            **node,
            "metadata": {**node["metadata"], "labels": dict(labels)},
            "spec": {"taints": list(taints)} if taints else {},
            "status": {**node["status"], "allocatable": amounts},
        }

    def set_cordoned(self, name: str, cordoned: bool) -> None:
        """Let a node take new pods, or none."""
        spec = {key: value for key, value in self.nodes[name]["spec"].items() if key != "unschedulable"}
        self.nodes[name] = {**self.nodes[name], "spec": {**spec, "unschedulable": True} if cordoned else spec}

    def set_gpus(self, name: str, gpus: int, resource: str = GPU) -> None:
        """Let a node have so many healthy GPUs of a resource; pods that hold others run on."""
        if resource == RESOURCE:
            self.devices.publish(name, gpus)
            return
        there = gpus
        if (name, resource) in self.away:
            self.away[name, resource] = self.away[name, resource][0], gpus
            there = 0
        status = self.nodes[name]["status"]
        amounts = {**status["allocatable"], resource: str(there)}
        capacity = {**status.get("capacity", {}), resource: str(gpus)}
        self.nodes[name] = {**self.nodes[name], "status": {**status, "allocatable": amounts, "capacity": capacity}}

    def restart_plugin(self, name: str, seconds: float, resource: str = GPU) -> None:
        """Let a node have no GPUs of a resource for a while; pods that hold some run on."""
        gpus = amount(resource, self.nodes[name]["status"]["allocatable"].get(resource, "0"))
        if gpus and resource != RESOURCE:
            self.away[name, resource] = self.now + seconds, gpus
            self.set_gpus(name, gpus, resource)

    def lacks(self, node: str) -> bool:
        """Return whether pods hold GPUs of a node that it has lost for good."""
        held = self.held().get(node, Counter())
        whole = {resource: self.away.get((node, resource), (0.0, 0))[1] for resource in GPU_RESOURCES}
        return any(held[resource] > max(whole[resource], self.whole(node).get(resource, 0)) for resource in whole)

    def remove_node(self, name: str) -> None:
        """Let a node be gone, its devices, and all that ran on it."""
        super().remove_node(name)
        self.away = {place: each for place, each in self.away.items() if place[0] != name}
        self.refusing.pop(name, None)
        self.devices.slices.pop(name, None)

    def set_maintained(self, name: str, maintained: bool) -> None:
        """Let a node be about to go, or stay."""
        node = self.nodes[name]
        labels = {key: value for key, value in node["metadata"]["labels"].items() if key not in MAINTENANCE}
        labels |= MAINTENANCE if maintained else {}
        self.nodes[name] = {**node, "metadata": {**node["metadata"], "labels": labels}}

    def submit(self, namespace: str, name: str, spec: Mapping[str, Any], finalizers: Sequence[str] = ()) -> None:
        """Make a job; `finalizers` are somebody else's."""
        metadata = {"name": name, "namespace": namespace, **self._birth(), "generation": 1}
        metadata |= {"finalizers": [*finalizers]} if finalizers else {}
        job = {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": dict(spec)}
        self.jobs[f"{namespace}/{name}"] = job

    def delete_job(self, key: str, uid: str | None = None) -> None:
        """Delete a job, unless a finalizer of somebody else holds it: then it goes when that is done (`held_until`)."""
        job = self._find(self.jobs, key, uid)
        if "finalizers" not in job["metadata"]:
            super().delete_job(key, uid)
        elif "deletionTimestamp" not in job["metadata"]:
            self.held_until[key] = self.now + HELD_SECONDS
            metadata = {**job["metadata"], "deletionTimestamp": utc(self.now).isoformat()}
            self.jobs[key] = {**job, "metadata": metadata}

    def set_queue(self, name: str, spec: Mapping[str, Any]) -> None:
        """Make a queue, or give it another specification."""
        known = self.queues.get(name)
        birth = {"name": name, **self._birth()} if known is None else known["metadata"]
        metadata = {**birth, "generation": birth.get("generation", 0) + 1}
        self.queues[name] = {"apiVersion": API_VERSION, "kind": "Queue", "metadata": metadata, "spec": dict(spec)}

    def set_resource_quota(self, namespace: str, hard: Mapping[str, int]) -> None:
        """Make the ResourceQuota of a namespace, or change it; without any limit, delete it."""
        key = f"{namespace}/team"
        if not hard:
            self.resource_quotas.pop(key, None)
            return
        written = {name: str(value) for name, value in hard.items()}
        known = self.resource_quotas.get(key, {"metadata": {"name": "team", "namespace": namespace, **self._birth()}})
        self.resource_quotas[key] = {**known, "spec": {"hard": written}, "status": {"hard": written, "used": {}}}
        self._count_quotas()

    def set_defaults(self, namespace: str, requests: Mapping[str, str]) -> None:
        """Make the LimitRange of a namespace, or change it; without any default, delete it."""
        key = f"{namespace}/defaults"
        if not requests:
            self.limit_ranges.pop(key, None)
            return
        birth = {"metadata": {"name": "defaults", "namespace": namespace, **self._birth()}}
        limit = {"type": "Container", "default": dict(requests), "defaultRequest": dict(requests)}
        self.limit_ranges[key] = {**self.limit_ranges.get(key, birth), "spec": {"limits": [limit]}}

    def add_stranger(self, key: str, pod: Mapping[str, Any], lasts: float, owner: Raw | None = None) -> None:
        """Add somebody else's pod that goes after `lasts` seconds; `owner` is whose it claims to be."""
        namespace, _, name = key.partition("/")
        references = {} if owner is None else {"ownerReferences": [owner]}
        metadata = {"namespace": namespace, "name": name, **references}
        try:
            self.create({"kind": "Pod", "metadata": metadata, "spec": dict(pod)})
        except ApiRefusalError:
            return  # its own quota
        self.leave_at[key] = self.now + lasts

    # ---- what the API server and the controllers do

    def create(self, manifest: Mapping[str, Any]) -> None:
        """Make an object, a pod with the defaults of its namespace, unless a ResourceQuota has no room for it."""
        metadata = manifest["metadata"]
        key = f"{metadata['namespace']}/{metadata['name']}"
        if manifest["kind"] == "Pod":
            self._admit(key, metadata["namespace"])
            manifest = self.completed(metadata["namespace"], manifest)
            manifest = self.webhooks.changed(key, manifest, self.now)
        if manifest["kind"] == "Pod" and key not in self.pods:
            quota = self.resource_quotas.get(f"{metadata['namespace']}/team")
            for name, hard in ({} if quota is None else quota["spec"]["hard"]).items():
                wants = self._counted(dict(manifest), name)
                used = self._used(metadata["namespace"], name)
                if wants and used + wants > _amount(name, hard):
                    self.over_quota.append(key)
                    message = (
                        f'pods "{metadata["name"]}" is forbidden: {QUOTA_EXCEEDED}: team, {name}: {used} of {hard}'
                    )
                    raise ApiRefusalError(f"create {key}", Status(403, "Forbidden", message))
        super().create(manifest)
        self._count_quotas()

    def _admit(self, key: str, namespace: str) -> None:
        until, denial = self.denials.get(namespace, (0.0, None))
        if denial is not None and self.now < until and key not in self.pods:
            self.denied[key] = self.now
            raise ApiRefusalError(f"create {key}", denial)
        self.denied.pop(key, None)

    def schedule(self) -> None:
        """Let kube-scheduler bind what waits."""
        machines = {name: self._machine(name) for name in self.nodes}
        self._scheduler.bind(machines, self.pods, self._time(), self.devices.left(self.pods.values()))
        self.devices.allocate(self.pods.values())

    def controllers(self) -> None:
        """Let pods of others and jobs go whose time has come; count quotas; and all else."""
        for key, at in list(self.leave_at.items()):
            if self.now >= at:
                del self.leave_at[key]
                if key in self.pods:
                    self.delete_pod(key)
        for (node, resource), (at, gpus) in list(self.away.items()):
            if self.now >= at:
                del self.away[node, resource]
                self.set_gpus(node, gpus, resource)
        for key, at in list(self.held_until.items()):
            if self.now >= at:
                del self.held_until[key], self.jobs[key]
        super().controllers()
        self.webhooks.open_gates(self.pods, self.now)
        self.devices.make_claims(self.pods, self._may_claim)
        self.devices.collect(self.pods.values(), self.now)
        self._count_quotas()

    # ---- reading

    def is_departing(self, node: str) -> bool:
        """Return whether a node reports, and is about to go."""
        found = self.nodes.get(node)
        if found is None or not self.is_ready(node):
            return False
        return bool(found["spec"].get("unschedulable")) or found["metadata"]["labels"].items() >= MAINTENANCE.items()

    def is_open(self, node: str) -> bool:
        """Return whether the node takes new pods, and stays."""
        return super().is_open(node) and not self.is_departing(node)

    def type_of(self, node: str, resource: str = GPU) -> str:
        """Return the type of a node's GPUs of a resource."""
        label = str(self.nodes[node]["metadata"]["labels"].get(TYPE_LABEL, ""))
        return label if resource == GPU else "/".join(filter(None, (resource, label)))

    def room_in(self, namespace: str, resource: str) -> int | None:
        """Return what a ResourceQuota leaves of a resource (as it names it); None: it is not limited."""
        quota = self.resource_quotas.get(f"{namespace}/team")
        if quota is None or resource not in quota["spec"]["hard"]:
            return None
        return _amount(resource, quota["spec"]["hard"][resource]) - self._used(namespace, resource)

    def completed(self, namespace: str, pod: Mapping[str, Any]) -> Raw:
        """Return a pod, or a template of one, as the API server makes it: with the defaults of the namespace."""
        limits = self.limit_ranges.get(f"{namespace}/defaults")
        if limits is None:
            return dict(pod)
        defaults, containers = limits["spec"]["limits"][0]["defaultRequest"], []
        for container in pod["spec"]["containers"]:
            asked = container.get("resources", {})
            requests = {**defaults, **asked.get("limits", {}), **asked.get("requests", {})}
            containers.append({**container, "resources": {**asked, "requests": requests}})
        return {**pod, "spec": {**pod["spec"], "containers": containers}}

    def whole(self, node: str) -> dict[str, int]:
        """Return what a node has, its devices too."""
        return allocatable_of(self._machine(node))

    def free(self, node: str, resource: str = GPU) -> int:
        """Return the GPUs of a resource on a node that nobody holds."""
        if resource != RESOURCE:
            return super().free(node, resource)
        return self.devices.whole(node, self.pods.values()) - self.held()[node][RESOURCE]

    def held(self) -> dict[str, Counter[str]]:
        """Return by node what the pods on it hold, and claims that are left of earlier pods."""
        left = self.devices.left(self.pods.values())
        found = {name: Counter(left.get(name, ())) for name in self.nodes}
        for pod in self.pods.values():
            if node_of(pod) in found and not is_over(pod):
                found[node_of(pod) or ""].update(requests_of(pod))
        return found

    # ---- within

    def _start(self, key: str) -> None:
        pod = self.pods[key]
        node, wants = node_of(pod) or "", requests_of(pod)
        place = claimant(pod), node
        if self.now < self.refusing.get(node, 0.0) and any(wants[each] for each in GPU_RESOURCES):
            said = {"reason": "UnexpectedAdmissionError", "message": "Allocate failed"}
            self.pods[key] = {**pod, "status": {**pod["status"], "phase": "Failed", **said}}
            self.refusals.setdefault(place, []).append(self.now)
            self.failed_at.add(place)
        else:
            self.refusals.pop(place, None)
            super()._start(key)

    def _end(self, key: str, code: int, at: float | None = None, *, container: str = "", **status: str) -> None:
        if code or container or status:
            self.failed_at.add((claimant(self.pods[key]), node_of(self.pods[key]) or ""))
        super()._end(key, code, at, container=container, **status)

    def _machine(self, name: str) -> Raw:
        """Return a node as if its devices were a resource of it."""
        node, devices = self.nodes[name], self.devices.whole(name, self.pods.values())
        if not devices:
            return node
        amounts = {**node["status"]["allocatable"], RESOURCE: str(devices)}
        return {**node, "status": {**node["status"], "allocatable": amounts}}

    def _may_claim(self, key: str, devices: int) -> bool:
        namespace = key.partition("/")[0]
        room = self.room_in(namespace, QUOTA)
        if room is None or devices <= room:
            if owner_of(self.pods[key]) is None:
                self.strangers_claimed.add(namespace)
            return True
        if namespace not in self.strangers_claimed:
            self.over_quota.append(key)
        return False

    def _used(self, namespace: str, resource: str) -> int:
        if resource == QUOTA:
            return self.devices.claimed_in(namespace)
        prefix = f"{namespace}/"
        return sum(
            self._counted(pod, resource)
            for key, pod in self.pods.items()
            if key.startswith(prefix) and not is_over(pod)
        )

    @staticmethod
    def _counted(pod: Raw, resource: str) -> int:
        return requests_of(pod)[resource.removeprefix("requests.")]

    def _count_quotas(self) -> None:
        for key, quota in self.resource_quotas.items():
            namespace = key.partition("/")[0]
            used = {name: _written(name, self._used(namespace, name)) for name in quota["spec"]["hard"]}
            if used != quota["status"]["used"]:
                self.resource_quotas[key] = {**quota, "status": {**quota["status"], "used": used}}


def _amount(limit: str, quantity: str) -> int:
    """Return the amount of what a ResourceQuota limits, in the units of `requests_of`."""
    return amount(limit.removeprefix("requests."), quantity)


def _written(limit: str, used: int) -> str:
    return f"{used}m" if limit == "requests.cpu" else str(used)
