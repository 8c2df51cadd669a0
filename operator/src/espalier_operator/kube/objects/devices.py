"""Devices of dynamic resource allocation (resource.k8s.io/v1), and which DeviceClass they are of. Pure.

Counted are devices of one node. Of the selectors of a class (CEL), these parts are judged, joined by `&&`:
`device.driver == 'NAME'`, `device.attributes['DOMAIN'].NAME == LITERAL`, both also with `!=`, and a lone attribute.
Any other part is taken as met: kube-scheduler judges it, and a job whose workers it refuses waits with back-off.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from espalier_operator.kube.reading import entries, mapping, text, whole
from espalier_operator.model.constraints import REPELLING

Value = str | int | bool
_PART: Final = re.compile(
    r"device\.(?:driver|attributes\[(?P<quote>['\"])(?P<domain>[^'\"\\]+)(?P=quote)\]\.(?P<name>[A-Za-z_]\w*))"
    r"(?:\s*(?P<operator>==|!=)\s*(?P<value>'[^'\\]*'|\"[^\"\\]*\"|true|false|-?[0-9]{1,18}))?"
)
_TOKEN: Final = re.compile(r"'[^'\\]*'|\"[^\"\\]*\"|&&|\|\||[()\[\]{}?'\"\\]")


@dataclass(frozen=True, slots=True)
class Requirement:
    """One part of a selector that is judged."""

    attribute: str | None
    """`DOMAIN/NAME`; None: the driver."""
    value: Value
    equal: bool

    def is_met(self, driver: str, attributes: Mapping[str, Value]) -> bool:
        """Return whether a device meets it. One without the attribute does not: CEL fails there."""
        found = driver if self.attribute is None else attributes.get(self.attribute)
        # In Python, True is 1.
        return found is not None and ((type(found), found) == (type(self.value), self.value)) is self.equal


@dataclass(frozen=True, slots=True)
class DeviceClass:
    """What the devices of a class meet, as far as it is judged."""

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
class Slice:
    """A part of a pool of devices."""

    driver: str
    pool: str
    generation: int
    """Of the pool: only slices of its newest one count."""
    slices: int
    """How many slices that generation has; kube-scheduler uses no pool of which some are missing."""
    devices: tuple[Device, ...]
    """Those that pods of one node can get, without those whose taints keep pods away."""


def parse_class(raw: Mapping[str, Any]) -> DeviceClass:
    """Return what a DeviceClass asks of devices. Never raises."""
    expressions = (text(each, "cel", "expression") for each in entries(raw, "spec", "selectors"))
    return DeviceClass(tuple(found for expression in expressions for found in requirements_of(expression)))


def parse_slice(raw: Mapping[str, Any]) -> Slice:
    """Return the devices of a ResourceSlice. Never raises."""
    spec = mapping(raw, "spec")
    driver, node = text(spec, "driver"), text(spec, "nodeName")
    found = ((each, text(each, "nodeName") or node) for each in entries(spec, "devices"))
    return Slice(
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
    """Yield the parts of a selector that are judged."""
    for part in _conjuncts(expression):
        found = _PART.fullmatch(part.strip())
        if found is not None:
            attribute = None if found["domain"] is None else f"{found['domain']}/{found['name']}"
            if found["operator"] is not None:
                yield Requirement(attribute, _literal(found["value"]), equal=found["operator"] == "==")
            elif attribute is not None:
                yield Requirement(attribute, value=True, equal=True)


def _conjuncts(expression: str) -> list[str]:
    """Return the parts of an expression that all must hold; none where that is not plain to see."""
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
