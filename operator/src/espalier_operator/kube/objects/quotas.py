"""ResourceQuotas as the API server has them, for the planner. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from espalier_core.k8s.resources import Raw
from espalier_operator.kube.objects.requirements import amount_of
from espalier_operator.kube.reading import entries, mapping, text
from espalier_operator.kube.settings import DEVICE_CLASS
from espalier_operator.model import NamespaceLimit
from espalier_operator.model.constraints import NATIVE, Expression

_REQUESTS: Final = "requests."
_PODS: Final = "count/pods"
_DEVICES: Final = ".deviceclass.resource.k8s.io/devices"
"""After the name of a DeviceClass: what claims for its devices may ask for."""


def parse_quota(raw: Mapping[str, Any]) -> tuple[NamespaceLimit, ...]:
    """Return what a ResourceQuota limits of what pods request. Never raises.

    Limits of limits, of storage and of other objects do not count: these are left to the API server, whose refusal is
    reported.
    """
    named = mapping(raw, "spec").get("scopes")
    scopes = [Expression(str(name), "Exists") for name in (named if isinstance(named, list | tuple) else ())]
    for each in entries(raw, "spec", "scopeSelector", "matchExpressions"):
        values = each.get("values")
        values = tuple(map(str, values)) if isinstance(values, list | tuple) else ()
        scopes.append(Expression(text(each, "scopeName"), text(each, "operator"), values))
    hard = mapping(raw, "status", "hard") or mapping(raw, "spec", "hard")
    used = mapping(raw, "status", "used")
    return tuple(
        NamespaceLimit(
            namespace=text(raw, "metadata", "namespace"),
            quota=text(raw, "metadata", "name"),
            resource=resource,
            hard=amount_of(resource, quantity),
            used=amount_of(resource, used.get(name)),
            scopes=tuple(scopes),
        )
        for name, quantity in hard.items()
        if (resource := _requested(name)) is not None
    )


def scopes_of(pod_spec: Raw, priority_class: str | None) -> tuple[tuple[str, str], ...]:
    """Return the scopes that a pod is in; that of its PriorityClass with the name of it."""
    found = ["NotTerminating" if pod_spec.get("activeDeadlineSeconds") is None else "Terminating"]
    found.append("BestEffort" if _is_best_effort(pod_spec) else "NotBestEffort")
    if _reaches_other_namespaces(pod_spec):
        found.append("CrossNamespacePodAffinity")
    return (*((name, "") for name in found), *([("PriorityClass", priority_class)] if priority_class else ()))


def _is_best_effort(pod_spec: Raw) -> bool:
    every = [pod_spec, *entries(pod_spec, "initContainers"), *entries(pod_spec, "containers")]
    asked = (mapping(each, "resources", kind) for each in every for kind in ("requests", "limits"))
    return not any(amount_of(name, each.get(name)) > 0 for each in asked for name in ("cpu", "memory"))


def _reaches_other_namespaces(pod_spec: Raw) -> bool:
    for kind in ("podAffinity", "podAntiAffinity"):
        affinity = mapping(pod_spec, "affinity", kind)
        terms = [*entries(affinity, "requiredDuringSchedulingIgnoredDuringExecution")]
        weighed = entries(affinity, "preferredDuringSchedulingIgnoredDuringExecution")
        terms += [mapping(each, "podAffinityTerm") for each in weighed]
        if any(term.get("namespaces") or term.get("namespaceSelector") is not None for term in terms):
            return True
    return False


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
