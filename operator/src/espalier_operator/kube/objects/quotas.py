"""ResourceQuotas as the API server has them, for the planner. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from espalier_operator.constraints import NATIVE
from espalier_operator.facts import NamespaceLimit
from espalier_operator.kube.objects.requirements import amount_of
from espalier_operator.kube.reading import mapping, text
from espalier_operator.kube.settings import DEVICE_CLASS

_REQUESTS: Final = "requests."
_PODS: Final = "count/pods"
_DEVICES: Final = ".deviceclass.resource.k8s.io/devices"
"""After the name of a DeviceClass: what claims for its devices may ask for."""


def parse_quota(raw: Mapping[str, Any]) -> tuple[NamespaceLimit, ...]:
    """Return what a ResourceQuota limits of what pods request. Never raises.

    One with scopes holds for some pods only, and limits of limits, of storage and of other objects do not count: these
    are left to the API server, whose refusal is reported.
    """
    if raw.get("spec") and (mapping(raw, "spec").get("scopes") or mapping(raw, "spec").get("scopeSelector")):
        return ()
    hard = mapping(raw, "status", "hard") or mapping(raw, "spec", "hard")
    used = mapping(raw, "status", "used")
    return tuple(
        NamespaceLimit(
            namespace=text(raw, "metadata", "namespace"),
            quota=text(raw, "metadata", "name"),
            resource=resource,
            hard=amount_of(resource, quantity),
            used=amount_of(resource, used.get(name)),
        )
        for name, quantity in hard.items()
        if (resource := _requested(name)) is not None
    )


def _requested(name: str) -> str | None:
    """Return the resource whose requests a quota limits by `name`; None: something else."""
    if name in NATIVE:  # also without the prefix; other names without it limit what pods do not name
        return name
    if name == _PODS:
        return "pods"
    if name.endswith(_DEVICES):
        return DEVICE_CLASS + name.removesuffix(_DEVICES)
    found = name.removeprefix(_REQUESTS)
    return found if found != name and found != "storage" else None
