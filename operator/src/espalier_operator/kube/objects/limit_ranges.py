"""What LimitRanges add to the requests of pods, as the API server does when it admits a pod. Pure.

Only containers have defaults. What LimitRanges refuse is left to the API server, whose answer is reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from espalier_core.k8s.resources import Raw
from espalier_operator.kube.objects.requirements import amount_of
from espalier_operator.kube.reading import entries, mapping, text

Defaults = Mapping[str, Any]
"""By resource, the quantity that a container requests if neither its requests nor its limits name the resource."""


def parse_limit_range(raw: Raw) -> Defaults | None:
    """Return the default requests of a LimitRange; None: it has none. Never raises.

    The API server completes `defaultRequest` when a LimitRange is written: from `default`, `max` or `min`.
    """
    limits = (each for each in entries(raw, "spec", "limits") if text(each, "type") == "Container")
    return largest(mapping(each, "defaultRequest") for each in limits) or None


def largest(given: Iterable[Defaults]) -> Defaults:
    """Return what a container requests by several LimitRanges: their order is not defined, so as much as it may be."""
    found = dict[str, Any]()
    for defaults in given:
        for name, quantity in defaults.items():
            found[name] = max(found.get(name, quantity), quantity, key=lambda each: amount_of(name, each))
    return found


def with_defaults(pod_spec: Raw, defaults: Defaults) -> Raw:
    """Return `pod_spec` with the defaults as requests of its containers; it has one if it names none.

    Not of what the whole pod has limits of: these are its requests already.
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
