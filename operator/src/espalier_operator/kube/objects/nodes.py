"""A node as the API server holds it, reduced to what the scheduler reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from espalier_operator.facts import Node
from espalier_operator.kube.reading import count, entries, mapping, text
from espalier_operator.kube.settings import KubeSettings

_REPELLING: Final = ("NoSchedule", "NoExecute")


def parse_node(raw: Mapping[str, Any], settings: KubeSettings) -> Node:
    """Return the facts of a node. Never raises.

    It is ready as long as its kubelet is heard of, also where that says that it is not well (its runtime is starting
    again, say): what runs there runs. It is schedulable if it takes new pods: it is well, not cordoned, and not tainted
    beyond what workers tolerate. Allocatable is counted, not capacity: GPUs that the device plugin found unhealthy
    leave it.
    """
    metadata, spec, status = mapping(raw, "metadata"), mapping(raw, "spec"), mapping(raw, "status")
    repelled = any(
        text(taint, "effect") in _REPELLING and text(taint, "key") not in settings.tolerated_taints
        for taint in entries(spec, "taints")
    )
    return Node(
        name=text(metadata, "name"),
        gpu_type=text(metadata, "labels", settings.gpu_type_label),
        allocatable=count(mapping(status, "allocatable").get(settings.gpu_resource)),
        ready=_ready(status) in ("True", "False"),
        schedulable=_ready(status) == "True"
        and spec.get("unschedulable") is not True
        and not repelled
        and metadata.get("deletionTimestamp") is None,
    )


def _ready(status: Mapping[str, Any]) -> str:
    """Return the status of the condition; `Unknown` is what the control plane writes when a kubelet falls silent."""
    conditions = entries(status, "conditions")
    return next((text(entry, "status") for entry in conditions if text(entry, "type") == "Ready"), "")
