"""A node as the API server holds it, reduced to what the scheduler reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from espalier_operator.facts import Node
from espalier_operator.kube.settings import KubeSettings

_REPELLING = ("NoSchedule", "NoExecute")


def parse_node(raw: Mapping[str, Any], settings: KubeSettings) -> Node:
    """Return the facts of a node; one that is cordoned, or tainted beyond what workers tolerate, is not schedulable.

    Allocatable is counted, not capacity: GPUs that the device plugin found unhealthy leave it.
    """
    metadata, spec, status = raw["metadata"], raw.get("spec") or {}, raw.get("status") or {}
    taints = spec.get("taints") or ()
    repelled = any(
        taint.get("effect") in _REPELLING and taint.get("key") not in settings.tolerated_taints for taint in taints
    )
    ready = any(
        condition.get("type") == "Ready" and condition.get("status") == "True"
        for condition in status.get("conditions") or ()
    )
    gpus = (status.get("allocatable") or {}).get(settings.gpu_resource, "0")
    return Node(
        name=metadata["name"],
        gpu_type=(metadata.get("labels") or {}).get(settings.gpu_type_label, ""),
        allocatable=int(gpus) if str(gpus).isdecimal() else 0,
        ready=ready,
        schedulable=not spec.get("unschedulable", False) and not repelled and "deletionTimestamp" not in metadata,
    )
