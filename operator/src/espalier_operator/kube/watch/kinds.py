"""The kinds of objects that are watched, and where."""

from __future__ import annotations

from typing import Final

from espalier_core.k8s import resources
from espalier_core.k8s.resources import Resource
from espalier_operator.kube.settings import KubeSettings

NAMESPACED: Final = (resources.JOBS, resources.CONFIG_MAPS)
"""Kinds of which only those in the namespaces looked after are watched."""
CLUSTER_WIDE: Final = (resources.NODES, resources.PODS, resources.PRIORITY_CLASSES)
"""Kinds that are watched everywhere: GPUs know no namespaces."""
_LIMITING: Final = (resources.RESOURCE_QUOTAS, resources.LIMIT_RANGES, resources.CLAIMS)
"""Optional kinds of which only those in the namespaces looked after are watched."""
CONSTRAINING: Final = (*_LIMITING, resources.VOLUMES, *resources.DEVICE_KINDS)
"""Kinds that say where and how many workers fit. Without the right to read them, kube-scheduler and the API server
refuse what does not fit."""


def optional_kinds(settings: KubeSettings) -> tuple[tuple[Resource, bool], ...]:
    """Return the kinds that an installation may lack, or whose rights it may, as one of an earlier chart.

    And whether only those in the namespaces looked after are watched. Each is watched by itself. The kinds of dynamic
    resource allocation, which many clusters lack, are watched only if the settings name a DeviceClass.
    """
    kinds = (resources.QUEUES, *CONSTRAINING)
    watched = (kind for kind in kinds if settings.device_classes or kind not in resources.DEVICE_KINDS)
    return tuple((kind, kind in _LIMITING) for kind in watched)
