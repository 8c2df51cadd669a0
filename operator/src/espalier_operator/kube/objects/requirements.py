"""What the spec of a pod requires of its node: GPUs, other resources, and where it may be bound. Pure.

A claim that is bound names a volume, and a local or zonal volume has the node affinity that kube-scheduler's plugin
VolumeBinding requires of the pod. A claim that is bound only once a pod uses it binds no pod yet.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from espalier_core.k8s.resources import Raw
from espalier_operator.kube.reading import count, entries, mapping, text, whole
from espalier_operator.kube.settings import KubeSettings
from espalier_operator.model.constraints import (
    Amounts,
    Constraints,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    Taint,
    Toleration,
)

UNREACHABLE: Final = Taint("node.kubernetes.io/unreachable", "", "NoExecute")
"""The taint of a node that does not report."""
DEFAULT_PATIENCE: Final = 300.0
"""What the API server fills in as `tolerationSeconds` of this taint unless a pod tolerates it already."""
Terms = tuple[NodeSelectorTerm, ...]


def resource_of(spec: Raw, settings: KubeSettings) -> str:
    """Return the first GPU resource of the settings that a pod of `spec` requests; the first one if it has none."""
    if not settings.other_gpu_resources:
        return settings.gpu_resource
    return next((each for each in settings.gpu_resources if request_of(spec, each)), settings.gpu_resource)


def constraints_of(spec: Raw, gpu_resource: str, tolerated: Iterable[str] = ()) -> Constraints:
    """Return what a pod of `spec` asks of nodes; taints with a key in `tolerated` are tolerated as well.

    A malformed requirement matches no node, as for kube-scheduler.
    """
    required = mapping(spec, "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution")
    selector = mapping(spec, "nodeSelector")
    return Constraints(
        node_selector=tuple(sorted((key, str(value)) for key, value in selector.items())),
        affinity=terms_of(required) if required else None,
        tolerations=(
            *map(_toleration, entries(spec, "tolerations")),
            *(Toleration(key, "Exists") for key in tolerated),
        ),
        requests=requests_of(spec, gpu_resource),
    )


def terms_of(required: Raw) -> tuple[NodeSelectorTerm, ...]:
    """Return the terms of a required node affinity."""
    return tuple(map(_term, entries(required, "nodeSelectorTerms")))


def _toleration(raw: Raw) -> Toleration:
    operator = text(raw, "operator") or "Equal"
    return Toleration(text(raw, "key"), operator, text(raw, "value"), text(raw, "effect"))


def _term(raw: Raw) -> NodeSelectorTerm:
    def expressions(field: str) -> tuple[NodeSelectorRequirement, ...]:
        return tuple(
            NodeSelectorRequirement(text(each, "key"), text(each, "operator"), tuple(map(str, _values(each))))
            for each in entries(raw, field)
        )

    return NodeSelectorTerm(expressions("matchExpressions"), expressions("matchFields"))


def _values(expression: Raw) -> Iterable[Any]:
    values = expression.get("values")
    return values if isinstance(values, list | tuple) else ()


def requests_of(spec: Raw, gpu_resource: str) -> Amounts:
    """Return what a pod of `spec` requests of a node, GPUs excluded.

    What is requested for the whole pod stands in place of what its containers request; its limits, where these request
    nothing.
    """
    named = {name for container in _all_containers(spec) for name in _requests(container)}
    overhead, limits = mapping(spec, "overhead"), mapping(spec, "resources", "limits")
    whole_pod = {name: limits[name] for name in limits if name not in named} | {
        **mapping(spec, "resources", "requests")
    }
    amounts = {
        name: (amount_of(name, whole_pod[name]) if name in whole_pod else request_of(spec, name))
        + amount_of(name, overhead.get(name))
        for name in named | overhead.keys() | whole_pod.keys()
    }
    amounts.pop(gpu_resource, None)
    return (*sorted((name, amount) for name, amount in amounts.items() if amount), ("pods", 1))


def amount_of(resource: str, quantity: Any) -> int:
    """Return a quantity of a resource: CPUs in thousandths, because pods request fractions; the rest in whole units."""
    return count(quantity, 1000 if resource == "cpu" else 1)


def _all_containers(spec: Raw) -> Iterator[Raw]:
    yield from entries(spec, "initContainers")
    yield from entries(spec, "containers")


def _requests(container: Raw) -> Raw:
    """Return requests by resource; limits are read where requests are not given, as the API server does."""
    resources = mapping(container, "resources")
    return {**mapping(resources, "limits"), **mapping(resources, "requests")}


def request_of(spec: Raw, resource: str) -> int:
    """Return how much of a resource a pod of `spec` takes: the sum over containers and side-cars, or more where an init
    container, which runs together with the side-cars before it, requests more.
    """

    def of(container: Raw) -> int:
        return amount_of(resource, _requests(container).get(resource))

    running, largest = 0, 0
    for container in entries(spec, "initContainers"):
        if _is_side_car(container):
            running += of(container)
            largest = max(largest, running)
        else:
            largest = max(largest, running + of(container))
    return max(running + sum(of(container) for container in entries(spec, "containers")), largest)


def _is_side_car(container: Raw) -> bool:
    return text(container, "restartPolicy") == "Always"


def patience_of(spec: Raw) -> float:
    """Return for how long a pod tolerates that its node does not report: the shortest of its tolerations.

    One of all taints is meant for others, and does not make it stay for ever.
    """
    fitting = [each for each in entries(spec, "tolerations") if _toleration(each).tolerates(UNREACHABLE)]
    seconds = [max(0, limit) for each in fitting if (limit := whole(each, "tolerationSeconds")) is not None]
    if seconds:
        return float(min(seconds))
    return math.inf if any(text(each, "key") for each in fitting) else DEFAULT_PATIENCE


def volume_of(raw: Mapping[str, Any]) -> str | None:
    """Return the name of the volume that a PersistentVolumeClaim is bound to."""
    return text(raw, "spec", "volumeName") or None


def affinity_of(raw: Mapping[str, Any]) -> Terms | None:
    """Return the node affinity of a PersistentVolume; None: it can be reached from every node."""
    required = mapping(raw, "spec", "nodeAffinity", "required")
    return terms_of(required) if required else None


def claims_of(pod_spec: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of the PersistentVolumeClaims that a pod mounts."""
    for volume in entries(pod_spec, "volumes"):
        name = text(volume, "persistentVolumeClaim", "claimName")
        if name:
            yield name
