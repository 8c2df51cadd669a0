"""Limits of a namespace: ResourceQuotas, for the planner, and default requests of pods by LimitRanges. Pure.

LimitRanges are applied as the API server applies them when it admits a pod; only containers have defaults. Refusals by
LimitRanges are left to the API server, whose answer is reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from espalier_core.k8s.resources import Raw
from espalier_operator.kube.objects.nodes import amount_of
from espalier_operator.kube.reading import entries, mapping, text
from espalier_operator.kube.settings import DEVICE_CLASS
from espalier_operator.model import NamespaceLimit
from espalier_operator.model.constraints import NATIVE, NodeSelectorRequirement

_REQUESTS: Final = "requests."
_PODS: Final = "count/pods"
_DEVICES: Final = ".deviceclass.resource.k8s.io/devices"
"""Suffix, after the name of a DeviceClass, of the quota for claims of its devices."""
Defaults = Mapping[str, Any]
"""Quantities, by resource, that a container requests if neither its requests nor its limits name the resource."""


def parse_quota(raw: Mapping[str, Any]) -> tuple[NamespaceLimit, ...]:
    """Return a ResourceQuota's limits on requests of pods. Never raises.

    Quotas of limits, storage and other objects are left to the API server, whose refusal is reported.
    """
    named = mapping(raw, "spec").get("scopes")
    scopes = [
        NodeSelectorRequirement(str(name), "Exists") for name in (named if isinstance(named, list | tuple) else ())
    ]
    for each in entries(raw, "spec", "scopeSelector", "matchExpressions"):
        values = each.get("values")
        values = tuple(map(str, values)) if isinstance(values, list | tuple) else ()
        scopes.append(NodeSelectorRequirement(text(each, "scopeName"), text(each, "operator"), values))
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
    """Return the scopes of a pod; the scope PriorityClass with the name of the class."""
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
    """Return the resource whose requests a quota limits by `name`; None for other quotas."""
    if name in NATIVE:  # also without the prefix; other names without it limit what pods do not name
        return name
    if name == _PODS:
        return "pods"
    if name.endswith(_DEVICES):
        return DEVICE_CLASS + name.removesuffix(_DEVICES)
    found = name.removeprefix(_REQUESTS)
    return found if found != name and found != "storage" else None


def parse_limit_range(raw: Raw) -> Defaults | None:
    """Return the default requests of a LimitRange; None: it has none. Never raises.

    The API server completes `defaultRequest` when a LimitRange is written: from `default`, `max` or `min`.
    """
    limits = (each for each in entries(raw, "spec", "limits") if text(each, "type") == "Container")
    return largest(mapping(each, "defaultRequest") for each in limits) or None


def largest(given: Iterable[Defaults]) -> Defaults:
    """Return the default requests by several LimitRanges: the maximum, as their order is undefined."""
    found = dict[str, Any]()
    for defaults in given:
        for name, quantity in defaults.items():
            found[name] = max(found.get(name, quantity), quantity, key=lambda each: amount_of(name, each))
    return found


def with_defaults(pod_spec: Raw, defaults: Defaults) -> Raw:
    """Return `pod_spec` with the defaults as requests of its containers; it has one if it names none.

    Resources with limits for the whole pod are left out, as these limits are its requests already.
    """
    whole_pod = mapping(pod_spec, "resources", "limits")
    defaults = {name: quantity for name, quantity in defaults.items() if name not in whole_pod}
    if not defaults:
        return pod_spec
    kinds = {"initContainers": entries(pod_spec, "initContainers"), "containers": entries(pod_spec, "containers")}
    completed = {kind: [_with_defaults(each, defaults) for each in found] for kind, found in kinds.items()}
    return {**pod_spec, **completed, "containers": completed["containers"] or [_with_defaults({}, defaults)]}


def _with_defaults(container: Raw, defaults: Defaults) -> Raw:
    resources = mapping(container, "resources")
    requests, limits = mapping(resources, "requests"), mapping(resources, "limits")
    missing = {name: quantity for name, quantity in defaults.items() if name not in limits}
    return {**container, "resources": {**resources, "requests": {**missing, **requests}}}
