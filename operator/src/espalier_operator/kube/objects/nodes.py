"""A node as the API server holds it, reduced to what the scheduler reads; and its GPUs of several resources. Pure.

The planner knows nodes with GPUs of one type. Where a cluster has several GPU resources (NVIDIA, AMD, MIG profiles), a
machine is one node of the planner for the first resource of the settings, and one more for each other resource that it
has; `Node.host` is the machine, and CPU and memory are shared. The type of GPUs of another resource begins with the
resource, and a job gets no GPUs of a resource that it does not request.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from espalier_operator.kube.objects.requirements import amount_of
from espalier_operator.kube.reading import count, entries, mapping, text, time
from espalier_operator.kube.settings import CORDONED, KubeSettings
from espalier_operator.model import Node
from espalier_operator.model.constraints import REPELLING, RESOURCE_LABEL, Constraints, Taint

_PARTS_OF_A_RESOURCE: Final = 2
"""DOMAIN/NAME."""


def parse_node(raw: Mapping[str, Any], settings: KubeSettings) -> Node:
    """Return the facts of a node. Never raises.

    It is ready while its kubelet reports, even where the kubelet reports a problem (its runtime restarts, for example):
    what runs there continues. It is schedulable if it takes new pods: healthy and not cordoned; its taints decide which
    ones. Allocatable is counted, not capacity: unhealthy GPUs leave it. If it is about to go, all its GPUs depart.
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
    )


def _is_departing(raw: Mapping[str, Any], settings: KubeSettings) -> bool:
    """Return whether one of the signs of the settings says that the node is about to go."""
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
    """Return the status of the condition; the control plane writes `Unknown` when a kubelet stops reporting."""
    return text(_condition(status), "status")


def _condition(status: Mapping[str, Any]) -> Mapping[str, Any]:
    conditions = entries(status, "conditions")
    return next((entry for entry in conditions if text(entry, "type") == "Ready"), {})


def nodes_of(node: Node, settings: KubeSettings, known: Container[str] = ()) -> Iterator[Node]:
    """Yield what the planner sees of a machine whose first resource `node` has; what others hold of it is in `used`.

    Where it is about to go, all its GPUs are. Of another resource of which nothing is left only what was `known`:
    pods that use it may run.
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
                # What pods hold that use another resource first: GPUs of two kinds in one pod.
                allocatable=max(0, amount - node.used.get(resource, 0)),
                labels={**node.labels, RESOURCE_LABEL: resource},
                departing=max(amount, 1) if is_departing else 0,
            )


def place_of(host: str | None, resource: str, settings: KubeSettings) -> str | None:
    """Return the name of the planner's node for GPUs of `resource` on a machine."""
    return host if host is None or resource == settings.gpu_resource else f"{host}/{resource}"


def type_of(label: str, resource: str, settings: KubeSettings) -> str:
    """Return the type of GPUs of `resource` on a machine whose label for types has the value `label`."""
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
    """Return `constraints` of a pod that requests GPUs of `resource`, so that only nodes of that resource admit it."""
    if not settings.other_gpu_resources:
        return constraints
    return replace(constraints, node_selector=(*constraints.node_selector, (RESOURCE_LABEL, resource)))
