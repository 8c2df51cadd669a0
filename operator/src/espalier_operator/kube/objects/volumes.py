"""Where volumes are: what binds a pod that mounts them to nodes. Pure.

A claim that is bound names a volume, and a local or zonal volume has the node affinity that kube-scheduler's plugin
VolumeBinding requires of the pod. A claim that is bound only once a pod uses it binds no pod yet.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from espalier_operator.kube.objects.requirements import terms_of
from espalier_operator.kube.reading import entries, mapping, text
from espalier_operator.model.constraints import Term

Terms = tuple[Term, ...]


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
