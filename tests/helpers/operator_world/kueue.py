"""A Kueue so simple that it is evidently right: one quota of GPUs a flavor, in the order of priority and age.

It admits, evicts, refuses and is away, as Kueue 0.17 does to Workloads whose owner it does not know: what it evicts
holds its quota until its Workload is deleted.
"""

from __future__ import annotations

from typing import Any, Final

from espalier_core.k8s import resources
from operator_world.kube_objects import GPU, Raw
from operator_world.kube_operator import KINDS
from operator_world.kubernetes import Kubernetes

KINDS_WITH_KUEUE: Final = {**KINDS, "flavors": resources.RESOURCE_FLAVORS, "workloads": resources.WORKLOADS}


class Kueue:
    """Its controllers; they act when they are called, unless `away`."""

    def __init__(self, world: Kubernetes) -> None:
        """Begin without flavors."""
        self._world, self.away = world, False
        self.quota: dict[str, int] = {}

    def add_flavor(
        self, name: str, gpus: int, node_labels: Raw | None = None, tolerations: list[Raw] | None = None
    ) -> None:
        """Add a ResourceFlavor with a quota of GPUs."""
        self.quota[name] = gpus
        spec = {"nodeLabels": node_labels or {}, "tolerations": tolerations or []}
        self._world.flavors[name] = {"metadata": {"name": name}, "spec": spec}

    def add_stranger(self, name: str, gpus: int = 1, count: int = 1, priority: int = 0, **spec: Any) -> str:
        """Add somebody else's Workload; return its key."""
        container = {"name": "main", "resources": {"requests": {GPU: gpus}}}
        pod_set = {"name": "main", "count": count, "template": {"spec": {"containers": [container]}}}
        manifest = {
            "kind": "Workload",
            "metadata": {"namespace": "others", "name": name},
            "spec": {"queueName": "queue", "priority": priority, "podSets": [pod_set], **spec},
        }
        self._world.create(manifest)
        return f"others/{name}"

    def act(self) -> None:
        """Admit what fits, and say of the rest that it does not."""
        waiting = [key for key, each in self._world.workloads.items() if not self.holds(key, "QuotaReserved")]
        for key in () if self.away else sorted(waiting, key=self._rank):
            spec = self._world.workloads[key]["spec"]
            wanted = next(
                (name for name in self.quota if self.free(name) >= gpus_of(spec) and self._suits(spec, name)), None
            )
            if spec.get("active") is False:
                self.say(key, "QuotaReserved", False, "The workload is deactivated", "Inactive")
            elif wanted is None:
                message = f"couldn't assign flavors to pod set main: insufficient unused quota for {GPU}"
                self.say(key, "QuotaReserved", False, message, "Pending")
            else:
                self.admit(key, wanted)

    def admit(self, key: str, flavor: str) -> None:
        """Admit a Workload."""
        assigned = {"name": "main", "flavors": {GPU: flavor}, "count": 1}
        workload = self._world.workloads[key]
        status = {**workload.get("status", {}), "admission": {"clusterQueue": "all", "podSetAssignments": [assigned]}}
        self._world.workloads[key] = {**workload, "status": status}
        for kind in ("QuotaReserved", "Admitted"):
            self.say(key, kind, True, "Quota reserved in ClusterQueue all", kind)

    def evict(self, key: str, message: str = "Preempted to accommodate a workload") -> None:
        """Ask for the quota of a Workload."""
        self.say(key, "Evicted", True, message, "Preempted")

    def deactivate(self, key: str) -> None:
        """Set `spec.active` to false, as an administrator does; its quota is then asked for."""
        workload = self._world.workloads[key]
        self._world.workloads[key] = {**workload, "spec": {**workload["spec"], "active": False}}
        if self.holds(key, "QuotaReserved"):
            self.say(key, "Evicted", True, "The workload is deactivated", "Deactivated")

    def activate(self) -> None:
        """Set `spec.active` of all Workloads to true."""
        for key, workload in list(self._world.workloads.items()):
            self._world.workloads[key] = {**workload, "spec": {**workload["spec"], "active": True}}

    def is_pending(self, key: str) -> bool:
        """Return whether it was said of a Workload that it has no quota."""
        conditions = self._world.workloads[key].get("status", {}).get("conditions", ())
        return any(each["type"] == "QuotaReserved" and each["status"] == "False" for each in conditions)

    def say(self, key: str, kind: str, holds: bool, message: str, reason: str) -> None:
        """Set a condition of a Workload."""
        workload = self._world.workloads[key]
        status = workload.get("status", {})
        others = [each for each in status.get("conditions", ()) if each["type"] != kind]
        condition = {"type": kind, "status": str(holds), "reason": reason, "message": message}
        self._world.workloads[key] = {**workload, "status": {**status, "conditions": [*others, condition]}}

    def holds(self, key: str, kind: str) -> bool:
        """Return whether a condition of a Workload is true."""
        conditions = self._world.workloads[key].get("status", {}).get("conditions", ())
        return any(each["type"] == kind and each["status"] == "True" for each in conditions)

    def free(self, flavor: str) -> int:
        """Return the GPUs of a quota that no Workload holds."""
        held = 0
        for key, each in self._world.workloads.items():
            if self.holds(key, "QuotaReserved"):
                (assigned,) = each["status"]["admission"]["podSetAssignments"]
                held += gpus_of(each["spec"]) if assigned["flavors"][GPU] == flavor else 0
        return self.quota[flavor] - held

    def _suits(self, spec: Raw, flavor: str) -> bool:
        selector = spec["podSets"][0]["template"]["spec"].get("nodeSelector", {})
        labels = self._world.flavors[flavor]["spec"]["nodeLabels"]
        return all(labels[key] == value for key, value in selector.items() if key in labels)

    def _rank(self, key: str) -> tuple[int, str, str]:
        workload = self._world.workloads[key]
        return -workload["spec"]["priority"], workload["metadata"]["creationTimestamp"], key


def gpus_of(spec: Raw) -> int:
    """Return the GPUs of all pods of a Workload."""
    return sum(
        pod_set["count"]
        * int({**each["resources"].get("limits", {}), **each["resources"].get("requests", {})}.get(GPU, 0))
        for pod_set in spec["podSets"]
        for each in pod_set["template"]["spec"]["containers"]
    )
