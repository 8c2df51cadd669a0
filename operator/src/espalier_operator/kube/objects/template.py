"""Changes a pod template's spec in place for a worker, keeping the user's fields where possible.

The API server validates most of a template only when a pod is created from it. So call `problems` first: only a
template without problems can be changed here.
"""

from __future__ import annotations

import copy
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from espalier_core.validation.problems import kind_of
from espalier_operator.kube.reading import entries, mapping

Manifest = dict[str, Any]

NODE_FIELD: Final = "metadata.name"
"""The node field that required node affinity can name."""
_TERMS: Final = "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
_SHAPES: Final[Mapping[str, type]] = {
    **{f"spec.{_TERMS.rsplit('.', parts)[0]}": dict for parts in (3, 2, 1)},
    f"spec.{_TERMS}": list,
    f"spec.{_TERMS}.*": dict,
    f"spec.{_TERMS}.*.matchExpressions": list,
    f"spec.{_TERMS}.*.matchFields": list,
    "spec.imagePullSecrets": list,
    "spec.imagePullSecrets.*": dict,
    "spec.serviceAccount": str,
    "spec.containers.*.env.*.name": str,
}
"""Types of the fields changed here that the model of a template leaves open; `*` is each item."""


def problems(template: Manifest) -> Iterator[str]:
    """Yield the problems in the shape of a pod template, field by field."""
    for path, kind in _SHAPES.items():
        for place, value in _items(template, path.split(".")):
            if not isinstance(value, kind):
                yield f"spec.template.{place}: is {kind_of(value)}; must be {kind_of(kind())}"
    if template["spec"].get("nodeName"):  # the kubelet rejects it, unless that is the node that the planner chooses
        yield "spec.template.spec.nodeName: binds workers past the scheduler; remove it, and use nodeSelector"


def without_nulls(value: Any) -> Any:
    """Return a copy of plain JSON without nulls in mappings, which mean the same as absent fields."""
    if isinstance(value, Mapping):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [without_nulls(item) for item in value]
    return value


def set_variables(container: Manifest, contract: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """Set environment variables (texts, or mappings for `valueFrom`); the template's may refer to them.

    Variables of `contract` replace the template's of the same name, variables of `defaults` do not.
    """
    given = [entry for entry in container.get("env") or () if entry.get("name") not in contract]
    taken = {entry.get("name") for entry in given}
    ours = {**contract, **{name: value for name, value in defaults.items() if name not in taken}}
    container["env"] = [
        *({"name": name, "value" if isinstance(value, str) else "valueFrom": value} for name, value in ours.items()),
        *given,
    ]


def mount(
    spec: Manifest, container: Manifest, name: str, path: str, source: Manifest, *, reserved: bool = False
) -> None:
    """Mount a volume of ours at `path` of the container, unless the template mounts one there.

    A template's mount at `path` or above it counts, as ours would hide a folder of the user's volume. A volume of the
    template named `name` is used instead of `source`. A `reserved` path is always ours, and read-only.
    """
    mounts, volumes = container.setdefault("volumeMounts", []), spec.setdefault("volumes", [])
    if reserved:
        mounts[:] = [given for given in mounts if absolute(given.get("mountPath", "")) != path]
        volumes[:] = [given for given in volumes if given.get("name") != name]
    elif any(_covers(absolute(given.get("mountPath", "")), path) for given in mounts):
        return
    mounts.append({"name": name, "mountPath": path, **({"readOnly": True} if reserved else {})})
    if all(given.get("name") != name for given in volumes):
        volumes.append({"name": name, **source})


def absolute(path: str) -> str:
    """Return `path` as interpreted by the kubelet: relative paths begin at the root."""
    return posixpath.normpath("/" + path.lstrip("/"))


def require_label_empty(spec: Manifest, label: str) -> None:
    """Keep the pod on nodes whose `label` is absent or empty, whatever else its affinity asks for."""
    demands = {"key": label, "operator": "DoesNotExist"}, {"key": label, "operator": "In", "values": [""]}
    terms = _terms(spec)
    # Requirements cannot be alternatives, but terms are.
    terms[:] = [_demanding(copy.deepcopy(term), "matchExpressions", demand) for term in terms for demand in demands]


def refuse_label(spec: Manifest, sign: str) -> None:
    """Keep the pod from nodes with a label: KEY, or KEY=VALUE."""
    key, _, value = sign.partition("=")
    demand = {"key": key, "operator": "NotIn", "values": [value]} if value else {"key": key, "operator": "DoesNotExist"}
    for term in _terms(spec):
        _demanding(term, "matchExpressions", demand)


def require_node(spec: Manifest, node: str) -> None:
    """Allow the pod to be bound only to `node`, if its affinity admits that."""
    for term in _terms(spec):
        _demanding(term, "matchFields", {"key": NODE_FIELD, "operator": "In", "values": [node]})


def prefer_others(spec: Manifest, node: str) -> None:
    """Make kube-scheduler prefer nodes other than `node`, as far as its weights decide."""
    found = spec.setdefault("affinity", {}).setdefault("nodeAffinity", {})
    others: list[Manifest] = found.setdefault("preferredDuringSchedulingIgnoredDuringExecution", [])
    term = _demanding({}, "matchFields", {"key": NODE_FIELD, "operator": "NotIn", "values": [node]})
    others.append({"weight": 100, "preference": term})


def required_node(spec: Mapping[str, Any]) -> str | None:
    """Return the node of `require_node`; None where there is none."""
    required = mapping(spec, "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution")
    term: Mapping[str, Any] = next(entries(required, "nodeSelectorTerms"), {})
    fields = list(entries(term, "matchFields"))
    values = fields[-1].get("values") if fields and fields[-1].get("key") == NODE_FIELD else None
    return values[0] if isinstance(values, list) and len(values) == 1 and isinstance(values[0], str) else None


def _terms(spec: Manifest) -> list[Manifest]:
    """Return the terms of which a node must match one, at least one term, so that each can get a further demand."""
    node = spec.setdefault("affinity", {}).setdefault("nodeAffinity", {})
    selector = node.setdefault("requiredDuringSchedulingIgnoredDuringExecution", {})
    terms: list[Manifest] = selector.setdefault("nodeSelectorTerms", [])
    if not terms:
        terms.append({})
    return terms


def _demanding(term: Manifest, kind: str, demand: Manifest) -> Manifest:
    term.setdefault(kind, []).append(demand)
    return term


def _items(value: Any, path: Sequence[str], place: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values at `path`, each with its place in words."""
    if not path:
        yield place, value
        return
    part, rest = path[0], path[1:]
    if part != "*":
        if isinstance(value, Mapping) and value.get(part) is not None:
            yield from _items(value[part], rest, f"{place}.{part}".lstrip("."))
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _items(item, rest, f"{place}.{key}")
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _items(item, rest, f"{place}[{number}]")


def _covers(parent: str, path: str) -> bool:
    return path == parent or path.startswith(parent.rstrip("/") + "/")
