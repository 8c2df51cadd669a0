"""Offers of nodes, and requirements of pods on nodes: GPUs, other resources, and constraints. Pure.

Nodes of the planner have GPUs of one type. Where a cluster has several GPU resources (NVIDIA, AMD, MIG profiles), a
machine is one node of the planner for the first resource of the settings, and one more for each other resource that it
has; `Node.host` is the machine, and CPU and memory are shared. The type of GPUs of another resource begins with the
resource, and a job gets no GPUs of a resource that it does not request.

A bound claim names a volume, and a local or zonal volume has the node affinity that kube-scheduler's plugin
VolumeBinding requires of the pod. A claim that is bound only when a pod uses it constrains no pod yet.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from espalier_core.k8s.resources import Raw
from espalier_operator.kube.reading import count, entries, mapping, text, time, whole
from espalier_operator.kube.settings import CORDONED, KubeSettings
from espalier_operator.model import Node
from espalier_operator.model.constraints import (
    REPELLING,
    RESOURCE_LABEL,
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
"""The API server's default `tolerationSeconds` for this taint, unless a pod tolerates it already."""
Terms = tuple[NodeSelectorTerm, ...]
_UNNEEDED: Final = "DeletionCandidateOfClusterAutoscaler"
"""The taint by which cluster-autoscaler says that it will remove a node if nothing changes."""
_PARTS_OF_A_RESOURCE: Final = 2
"""Number of parts in DOMAIN/NAME."""


def resource_of(spec: Raw, settings: KubeSettings) -> str:
    """Return the first GPU resource of the settings that a pod of `spec` requests; the first one if it has none."""
    if not settings.other_gpu_resources:
        return settings.gpu_resource
    return next((each for each in settings.gpu_resources if request_of(spec, each)), settings.gpu_resource)


def requests_gpus(spec: Raw, settings: KubeSettings) -> bool:
    """Return whether a pod of `spec` requests GPUs of any resource of the settings."""
    return any(request_of(spec, each) for each in settings.gpu_resources)


def constraints_of(spec: Raw, gpu_resource: str, tolerated: Iterable[str] = ()) -> Constraints:
    """Return the constraints of a pod of `spec`; taints with a key in `tolerated` are tolerated as well.

    A malformed requirement matches no node, as for kube-scheduler.
    """
    required = mapping(spec, "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution")
    selector = mapping(spec, "nodeSelector")
    return Constraints(
        node_selector=tuple(sorted((key, str(value)) for key, value in selector.items())),
        affinity=terms_of(required) if required else None,
        tolerations=(
            *map(toleration_of, entries(spec, "tolerations")),
            *(Toleration(key, "Exists") for key in tolerated),
        ),
        requests=requests_of(spec, gpu_resource),
    )


def terms_of(required: Raw) -> tuple[NodeSelectorTerm, ...]:
    """Return the terms of a required node affinity."""
    return tuple(map(_term, entries(required, "nodeSelectorTerms")))


def toleration_of(raw: Raw) -> Toleration:
    """Return a toleration of a pod."""
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
    """Return the requests of a pod of `spec`, GPUs excluded.

    Requests for the whole pod replace its containers' requests; limits for the whole pod apply where containers
    request nothing.
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
    """Return the amount of a resource that a pod of `spec` takes: the sum over containers and side-cars, or the request
    of an init container with the side-cars before it, if larger.
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
    """Return the seconds for which a pod tolerates that its node does not report: the shortest of its tolerations.

    A toleration of all taints without a limit does not make it stay for ever.
    """
    fitting = [each for each in entries(spec, "tolerations") if toleration_of(each).tolerates(UNREACHABLE)]
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


def parse_node(raw: Mapping[str, Any], settings: KubeSettings) -> Node:
    """Return the facts of a node. Never raises.

    It is ready while its kubelet reports, even a problem (its runtime restarts, for example), as its pods continue. It
    is schedulable if it takes new pods: healthy and not cordoned; its taints decide which ones. Allocatable is counted,
    not capacity, as unhealthy GPUs leave it. If it is about to go, all its GPUs depart.
    """
    metadata, spec, status = mapping(raw, "metadata"), mapping(raw, "spec"), mapping(raw, "status")
    allocatable, capacity = mapping(status, "allocatable"), mapping(status, "capacity")
    gpus = count(allocatable.get(settings.gpu_resource))
    lacking = {name: count(capacity.get(name)) - count(allocatable.get(name)) for name in settings.gpu_resources}
    return Node(
        name=text(metadata, "name"),
        gpu_type=text(metadata, "labels", settings.gpu_type_label),
        allocatable=gpus,
        departing=max(gpus, 1) if _is_departing(raw, settings) else 0,
        ready=_ready(status) in ("True", "False"),
        silent_since=None if _ready(status) in ("True", "False") else time(_condition(status), "lastTransitionTime"),
        schedulable=_ready(status) == "True"
        and spec.get("unschedulable") is not True
        and metadata.get("deletionTimestamp") is None,
        labels={key: value for key, value in mapping(metadata, "labels").items() if isinstance(value, str)},
        resources={
            name: amount_of(name, quantity) for name, quantity in allocatable.items() if name != settings.gpu_resource
        },
        taints=tuple(
            Taint(text(taint, "key"), text(taint, "value"), text(taint, "effect"))
            for taint in entries(spec, "taints")
            if text(taint, "effect") in REPELLING
        ),
        unhealthy={name: amount for name, amount in lacking.items() if amount > 0},
        unneeded=any(text(taint, "key") == _UNNEEDED for taint in entries(spec, "taints")),
    )


def _is_departing(raw: Mapping[str, Any], settings: KubeSettings) -> bool:
    """Return whether the node has one of the settings' signs that it is about to go."""
    signs = set(settings.departing_nodes)
    if not signs:
        return False
    labels = mapping(raw, "metadata", "labels")
    pairs = [(text(taint, "key"), text(taint, "value")) for taint in entries(raw, "spec", "taints")]
    if mapping(raw, "spec").get("unschedulable") is True:
        pairs.append((CORDONED, ""))
    pairs += labels.items()
    conditions = entries(raw, "status", "conditions")
    return any(key in signs or f"{key}={value}" in signs for key, value in pairs) or any(
        text(entry, "type") in signs and text(entry, "status") == "True" for entry in conditions
    )


def _ready(status: Mapping[str, Any]) -> str:
    """Return the status of the condition Ready, `Unknown` when a kubelet has stopped reporting."""
    return text(_condition(status), "status")


def _condition(status: Mapping[str, Any]) -> Mapping[str, Any]:
    conditions = entries(status, "conditions")
    return next((entry for entry in conditions if text(entry, "type") == "Ready"), {})


def nodes_of(node: Node, settings: KubeSettings, known: Container[str] = ()) -> Iterator[Node]:
    """Yield the planner's nodes of a machine; `node` has its first resource, and holdings by foreign pods in `used`.

    If the machine is about to go, so are all its GPUs. A node for another resource of which nothing is left is yielded
    only if it was `known`, as pods that use it may run.
    """
    others = settings.other_gpu_resources
    if not others:
        yield node
        return
    is_departing = node.departing > 0
    labels = {**node.labels, RESOURCE_LABEL: settings.gpu_resource}
    yield replace(node, labels=labels)
    for resource in others:
        amount, name = node.resources.get(resource, 0), place_of(node.name, resource, settings) or node.name
        if amount or name in known:
            yield replace(
                node,
                name=name,
                gpu_type=type_of(node.gpu_type, resource, settings),
                # Less the holdings of pods that use another resource first: GPUs of two kinds in one pod.
                allocatable=max(0, amount - node.used.get(resource, 0)),
                labels={**node.labels, RESOURCE_LABEL: resource},
                departing=max(amount, 1) if is_departing else 0,
            )


def place_of(host: str | None, resource: str, settings: KubeSettings) -> str | None:
    """Return the name of the planner's node for GPUs of `resource` on a machine."""
    return host if host is None or resource == settings.gpu_resource else f"{host}/{resource}"


def type_of(label: str, resource: str, settings: KubeSettings) -> str:
    """Return the type of GPUs of `resource` on a machine with the value `label` of the label for types."""
    if resource == settings.gpu_resource:
        return label
    return f"{resource}/{label}" if label else resource


def label_of(gpu_type: str) -> str:
    """Return the value of the label for types on machines with GPUs of a type; empty where they have none."""
    parts = gpu_type.split("/", _PARTS_OF_A_RESOURCE)
    return gpu_type if len(parts) == 1 else "".join(parts[_PARTS_OF_A_RESOURCE:])


def resource_of_type(gpu_type: str, settings: KubeSettings) -> str:
    """Return the resource of GPUs of a type."""
    parts = gpu_type.split("/", _PARTS_OF_A_RESOURCE)
    return settings.gpu_resource if len(parts) == 1 else "/".join(parts[:_PARTS_OF_A_RESOURCE])


def restricted(constraints: Constraints, resource: str, settings: KubeSettings) -> Constraints:
    """Return `constraints` that only nodes of `resource` admit."""
    if not settings.other_gpu_resources:
        return constraints
    return replace(constraints, node_selector=(*constraints.node_selector, (RESOURCE_LABEL, resource)))
