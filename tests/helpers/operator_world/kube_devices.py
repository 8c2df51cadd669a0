"""Objects of dynamic resource allocation as an API server holds them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Raw = dict[str, Any]

DRIVER = "gpu.example.com"
CLASS = "gpu.example.com"
RESOURCE = f"deviceclass.resource.kubernetes.io/{CLASS}"
"""The resource of the settings that stands for the class."""
QUOTA = f"{CLASS}.deviceclass.resource.k8s.io/devices"
"""What a ResourceQuota calls them; it limits claims, not pods."""
TEMPLATES = {f"devices-{count}": count for count in (1, 2, 4, 9)}
"""The ResourceClaimTemplates of a shared cluster, the same in each namespace: how many devices they ask for."""


def raw_class(name: str = CLASS, *expressions: str) -> Raw:
    """Return a DeviceClass; without `expressions` that of the devices of the driver."""
    given = expressions or (f"device.driver == '{DRIVER}'",)
    selectors = [{"cel": {"expression": expression}} for expression in given]
    return {"metadata": {"name": name}, "spec": {"selectors": selectors}}


def raw_slice(
    node: str,
    devices: Iterable[str | Raw],
    *,
    name: str | None = None,
    pool: str | None = None,
    driver: str = DRIVER,
    generation: int = 1,
    slices: int = 1,
) -> Raw:
    """Return a ResourceSlice with devices (or their names) of a node; a pool of its own by default."""
    found = [{"name": each} if isinstance(each, str) else each for each in devices]
    about = {"name": pool or node, "generation": generation, "resourceSliceCount": slices}
    spec = {"driver": driver, "nodeName": node, "pool": about, "devices": found}
    return {"metadata": {"name": name or f"{node}-{driver}"}, "spec": spec}


def asking(count: int = 1, name: str = CLASS, **exactly: Any) -> Raw:
    """Return the specification of a claim for devices of a class."""
    return {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": name, "count": count, **exactly}}]}}


def raw_template(spec: Raw, name: str = "one-gpu", namespace: str = "ns") -> Raw:
    """Return a ResourceClaimTemplate."""
    return {"metadata": {"name": name, "namespace": namespace}, "spec": {"spec": spec}}


def allocation(node: str, devices: Sequence[str], *, pool: str | None = None, driver: str = DRIVER) -> Raw:
    """Return the status of a claim that has devices of a node."""
    results = [{"request": "gpu", "driver": driver, "pool": pool or node, "device": device} for device in devices]
    fields = [{"key": "metadata.name", "operator": "In", "values": [node]}]
    selector = {"nodeSelectorTerms": [{"matchFields": fields}]}
    return {"allocation": {"devices": {"results": results}, "nodeSelector": selector}}


def raw_claim(
    name: str, spec: Raw | None = None, status: Raw | None = None, *, pod: Mapping[str, Any] | None = None
) -> Raw:
    """Return a ResourceClaim in the namespace of `pod`, the pod that it was made for, or else `ns`."""
    metadata: Raw = {"name": name, "namespace": "ns"}
    if pod is not None:
        metadata["namespace"] = pod["metadata"]["namespace"]
        about = {key: pod["metadata"][key] for key in ("name", "uid")}
        metadata["ownerReferences"] = [{"apiVersion": "v1", "kind": "Pod", "controller": True, **about}]
    return {"metadata": metadata, "spec": spec or asking(), "status": status or {}}


def claiming(template: str = "one-gpu", **more: Any) -> Raw:
    """Return the pod spec of a container that claims devices by a ResourceClaimTemplate."""
    container = {"name": "trainer", "image": "mine", "resources": {"claims": [{"name": "gpu"}]}}
    claims = [{"name": "gpu", "resourceClaimTemplateName": template}]
    return {"containers": [container], "resourceClaims": claims, **more}


def claimed_by(pod: Mapping[str, Any]) -> int:
    """Return how many devices a pod claims by `TEMPLATES`."""
    claims = pod["spec"].get("resourceClaims") or ()
    return sum(TEMPLATES[claim["resourceClaimTemplateName"]] for claim in claims)


def claim_of(pod: Mapping[str, Any]) -> str:
    """Return the key of the claim that was made for a pod; empty where none was."""
    names = [each["resourceClaimName"] for each in pod["status"].get("resourceClaimStatuses") or ()]
    return f"{pod['metadata']['namespace']}/{names[0]}" if names else ""
