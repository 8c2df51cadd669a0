"""Several GPU resources in one cluster (NVIDIA, AMD, MIG profiles): how the planner sees each by itself. Pure.

The planner knows nodes with GPUs of one type. So a machine is one node of the planner for the first resource of the
settings, and one more for each other resource that it has; `Node.host` is the machine, and CPU and memory are shared.
The type of GPUs of another resource begins with the resource, and a job gets no GPUs of a resource that it does not
request.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import replace
from typing import Final

from espalier_operator.kube.settings import KubeSettings
from espalier_operator.model import Node
from espalier_operator.model.constraints import RESOURCE_LABEL, Constraints

_PARTS_OF_A_RESOURCE: Final = 2
"""DOMAIN/NAME."""


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
