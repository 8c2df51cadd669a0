"""Devices of dynamic resource allocation (resource.k8s.io/v1), and the ResourceClaims that ask for them. Pure.

A resource of the settings stands for the devices of a DeviceClass (`settings.DEVICE_CLASS`). Devices of one node are
counted. These parts of a class's selectors (CEL), joined by `&&`, are evaluated: `device.driver == 'NAME'`,
`device.attributes['DOMAIN'].NAME == LITERAL`, both also with `!=`, and a lone attribute. Any other part counts as met:
kube-scheduler evaluates it, and a job whose workers it refuses waits with back-off.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from espalier_operator.kube.reading import entries, mapping, text, whole
from espalier_operator.model.constraints import REPELLING, Amounts

Value = str | int | bool
_PART: Final = re.compile(
    r"device\.(?:driver|attributes\[(?P<quote>['\"])(?P<domain>[^'\"\\]+)(?P=quote)\]\.(?P<name>[A-Za-z_]\w*))"
    r"(?:\s*(?P<operator>==|!=)\s*(?P<value>'[^'\\]*'|\"[^\"\\]*\"|true|false|-?[0-9]{1,18}))?"
)
_TOKEN: Final = re.compile(r"'[^'\\]*'|\"[^\"\\]*\"|&&|\|\||[()\[\]{}?'\"\\]")
_EXACT: Final = "ExactCount"


@dataclass(frozen=True, slots=True)
class Requirement:
    """One evaluated part of a selector."""

    attribute: str | None
    """`DOMAIN/NAME`; None: the driver."""
    value: Value
    equal: bool

    def is_met(self, driver: str, attributes: Mapping[str, Value]) -> bool:
        """Return whether a device meets the requirement. Without the attribute it does not, as CEL fails there."""
        found = driver if self.attribute is None else attributes.get(self.attribute)
        # In Python, True == 1.
        return found is not None and ((type(found), found) == (type(self.value), self.value)) is self.equal


@dataclass(frozen=True, slots=True)
class DeviceClass:
    """The evaluated requirements of a DeviceClass."""

    requirements: tuple[Requirement, ...]

    def has(self, driver: str, device: Device) -> bool:
        """Return whether a device of `driver` is of the class."""
        attributes = dict(device.attributes)
        return all(each.is_met(driver, attributes) for each in self.requirements)


@dataclass(frozen=True, slots=True)
class Device:
    """A device that pods of one node can get."""

    name: str
    node: str
    attributes: tuple[tuple[str, Value], ...]
    """By `DOMAIN/NAME`."""


@dataclass(frozen=True, slots=True)
class DeviceSlice:
    """A part of a pool of devices."""

    driver: str
    pool: str
    generation: int
    """Generation of the pool: only slices of the newest one count."""
    slices: int
    """Number of slices in that generation; kube-scheduler uses no pool with missing slices."""
    devices: tuple[Device, ...]
    """Devices that pods of one node can get, without those whose taints keep pods away."""


def parse_class(raw: Mapping[str, Any]) -> DeviceClass:
    """Return the requirements of a DeviceClass. Never raises."""
    expressions = (text(each, "cel", "expression") for each in entries(raw, "spec", "selectors"))
    return DeviceClass(tuple(found for expression in expressions for found in requirements_of(expression)))


def parse_slice(raw: Mapping[str, Any]) -> DeviceSlice:
    """Return the devices of a ResourceSlice. Never raises."""
    spec = mapping(raw, "spec")
    driver, node = text(spec, "driver"), text(spec, "nodeName")
    found = ((each, text(each, "nodeName") or node) for each in entries(spec, "devices"))
    return DeviceSlice(
        driver=driver,
        pool=text(spec, "pool", "name"),
        generation=whole(spec, "pool", "generation") or 0,
        slices=whole(spec, "pool", "resourceSliceCount") or 0,
        devices=tuple(
            Device(text(each, "name"), place, tuple(_attributes(each, driver)))
            for each, place in found
            if place and not any(text(taint, "effect") in REPELLING for taint in entries(each, "taints"))
        ),
    )


def requirements_of(expression: str) -> Iterator[Requirement]:
    """Yield the evaluated parts of a selector."""
    for part in _conjuncts(expression):
        found = _PART.fullmatch(part.strip())
        if found is not None:
            attribute = None if found["domain"] is None else f"{found['domain']}/{found['name']}"
            if found["operator"] is not None:
                yield Requirement(attribute, _literal(found["value"]), equal=found["operator"] == "==")
            elif attribute is not None:
                yield Requirement(attribute, value=True, equal=True)


def _conjuncts(expression: str) -> list[str]:
    """Return the parts of an expression that must all hold; none where the expression is too complex."""
    parts, depth, begin = list[str](), 0, 0
    for token in _TOKEN.finditer(expression):
        match token[0]:
            case "(" | "[" | "{":
                depth += 1
            case ")" | "]" | "}":
                depth -= 1
            case "&&" if depth == 0:
                parts.append(expression[begin : token.start()])
                begin = token.end()
            case "||" | "?" if depth == 0:
                return []
            case "'" | '"' | "\\":
                return []  # a literal with escapes, or of several lines
    return [*parts, expression[begin:]]


def _literal(text: str) -> Value:
    if text in ("true", "false"):
        return text == "true"
    return text[1:-1] if text[0] in "'\"" else int(text)


def _attributes(device: Mapping[str, Any], driver: str) -> Iterator[tuple[str, Value]]:
    for name, given in mapping(device, "attributes").items():
        for value in mapping(given).values():
            if isinstance(value, str | int | bool):
                yield name if "/" in name else f"{driver}/{name}", value


@dataclass(frozen=True, slots=True)
class DeviceRequest:
    """The request of a claim."""

    amounts: tuple[tuple[str, int], ...] = ()
    """Devices by DeviceClass."""
    problem: str = ""
    """The fault for which the amounts are incomplete, with its field."""

    def of(self, classes: Mapping[str, str]) -> Amounts:
        """Return the devices by resource, for the classes that stand for one."""
        return tuple((classes[name], count) for name, count in self.amounts if name in classes)


@dataclass(frozen=True, slots=True)
class ClaimedDevice:
    """An allocated device."""

    driver: str
    pool: str
    device: str


@dataclass(frozen=True, slots=True)
class DeviceClaim:
    """A ResourceClaim."""

    pod: str | None
    """Key of the pod for which it was made from a template; None: made by hand, so that pods may share it."""
    asked: DeviceRequest
    devices: tuple[ClaimedDevice, ...]
    """Devices that it holds while it is allocated."""
    allocated: bool
    deleting: bool


def parse_template(raw: Mapping[str, Any]) -> DeviceRequest:
    """Return the request of claims of a ResourceClaimTemplate. Never raises."""
    return _asked(mapping(raw, "spec", "spec", "devices"))


def parse_claim(raw: Mapping[str, Any]) -> DeviceClaim:
    """Return the facts of a ResourceClaim. Never raises."""
    metadata, allocation = mapping(raw, "metadata"), mapping(raw, "status", "allocation")
    owners = (each for each in entries(metadata, "ownerReferences") if each.get("controller") is True)
    pods = [text(owner, "name") for owner in owners if text(owner, "kind") == "Pod"]
    return DeviceClaim(
        pod=f"{text(metadata, 'namespace')}/{pods[0]}" if pods else None,
        asked=_asked(mapping(raw, "spec", "devices")),
        devices=tuple(
            ClaimedDevice(text(each, "driver"), text(each, "pool"), text(each, "device"))
            for each in entries(allocation, "devices", "results")
            if each.get("adminAccess") is not True
        ),
        allocated=bool(allocation),
        deleting=metadata.get("deletionTimestamp") is not None,
    )


def _asked(devices: Mapping[str, Any]) -> DeviceRequest:
    amounts, problem = Counter[str](), ""
    for request in entries(devices, "requests"):
        exactly, place = mapping(request, "exactly"), f"request {text(request, 'name')!r}"
        if not exactly:
            problem = problem or f"{place} has alternatives (firstAvailable), of which it is not known which a pod gets"
        elif exactly.get("adminAccess") is True:
            continue  # admin access only observes devices in use
        elif (text(exactly, "allocationMode") or _EXACT) != _EXACT:
            problem = problem or f"{place} has allocationMode All, which is another number on each node"
        else:
            count = whole(exactly, "count")
            amounts[text(exactly, "deviceClassName")] += 1 if count is None else max(0, count)
    return DeviceRequest(tuple(sorted(amounts.items())), problem)


def templates_of(pod_spec: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield (path, name of the claim in the pod, name of its template) for each of a pod's own claims."""
    for number, claim in enumerate(entries(pod_spec, "resourceClaims")):
        template = text(claim, "resourceClaimTemplateName")
        if template:
            yield f"resourceClaims[{number}].resourceClaimTemplateName", text(claim, "name"), template


def generated_for(pod: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the names of the ResourceClaims made for a pod, by the name of the claim in the pod."""
    statuses = entries(pod, "status", "resourceClaimStatuses")
    return {text(each, "name"): text(each, "resourceClaimName") for each in statuses if text(each, "resourceClaimName")}


def extended_for(pod: Mapping[str, Any]) -> str:
    """Return the name of the ResourceClaim that kube-scheduler made for limits of the pod's containers, if any."""
    return text(pod, "status", "extendedResourceClaimStatus", "resourceClaimName")


def with_claimed(pod_spec: Mapping[str, Any], amounts: Amounts) -> Mapping[str, Any]:
    """Return `pod_spec` with the requests of its claims as limits of one more container, the last."""
    if not amounts:
        return pod_spec
    limits = Counter[str]()
    for resource, count in amounts:
        limits[resource] += count
    return {**pod_spec, "containers": [*entries(pod_spec, "containers"), {"resources": {"limits": dict(limits)}}]}


def claimed_by_job(
    pod_spec: Mapping[str, Any],
    classes: Mapping[str, str],
    template: Callable[[str], DeviceRequest | None],
    *,
    needed: bool,
) -> tuple[Amounts, tuple[str, ...]]:
    """Return the devices that each worker of a job claims by templates, by resource, and the problems of the claims.

    `classes` are the resources of the settings by DeviceClass, `template` returns the request of a template by name. If
    claims are not `needed`, as the containers have limits of GPUs, unknown templates are left to kube-scheduler.
    """
    amounts, problems = list[tuple[str, int]](), list[str]()
    containers = entries(pod_spec, "containers")
    users = {text(claim, "name") for each in containers for claim in entries(each, "resources", "claims")}
    for path, name, called in templates_of(pod_spec):
        asked, place = template(called), f"spec.template.spec.{path}"
        if asked is None and not needed:
            continue
        if asked is None:
            problems.append(f"{place}: there is no ResourceClaimTemplate {called!r}; create it or name another")
            continue
        found = asked.of(classes)
        if asked.problem and (found or needed):
            problems.append(f"{place}: the GPUs of {called!r} cannot be counted: {asked.problem}; ask for a count")
        if found and name not in users:
            problems.append(f"{place}: no container uses the claim {name!r}; name it in its resources.claims")
        amounts += found
    return tuple(amounts), tuple(problems)
