"""A node as the API server holds it, reduced to what the scheduler reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from espalier_operator.kube.objects.requirements import amount_of
from espalier_operator.kube.reading import count, entries, mapping, text, time
from espalier_operator.kube.settings import CORDONED, KubeSettings
from espalier_operator.model import Node
from espalier_operator.model.constraints import REPELLING, Taint


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
