"""Readers of API server objects: fields of any content, and lists of metadata only. Pure.

A field of another type than expected counts as absent: one malformed object of another client must not prevent the
scheduler from reading all others.

An API server can send metadata only (`Accept`): identities and versions of objects. For thousands of nodes and pods
that is 40 % of the bytes; most of these are managed fields, which are skipped while the text is parsed.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final

from pydantic_core import SchemaValidator, core_schema

from espalier_core.k8s.resources import Raw, at
from espalier_core.k8s.resources import entries as entries
from espalier_core.k8s.resources import mapping as mapping
from espalier_core.k8s.resources import text as text

_QUANTITY: Final = re.compile(
    r"(?P<number>\+?([0-9]{1,40}(\.[0-9]{0,40})?|\.[0-9]{1,40}))"
    r"(?P<suffix>[numkMGTPE]|[KMGTPE]i|[eE](?P<power>[+-]?[0-9]{1,2}))?"
)
_SCALES: Final = {
    **{suffix: Decimal(1000) ** power for power, suffix in enumerate("num", start=-3)},
    **{suffix: Decimal(1000) ** power for power, suffix in enumerate("kMGTPE", start=1)},
    **{f"{suffix}i": Decimal(1024) ** power for power, suffix in enumerate("KMGTPE", start=1)},
}
_MOST: Final = 2**63 - 1
"""The largest quantity of Kubernetes."""
IDENTITIES: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
IDENTITIES_PAGE: Final = 1000
"""Objects in one page, which is parsed in some milliseconds."""


def is_deeper(raw: Any, levels: int) -> bool:
    """Return whether lists and mappings are nested more than `levels` deep. Does not recurse."""
    front = [raw]
    for _ in range(levels):
        front = [
            child
            for value in front
            if isinstance(value, Mapping | list | tuple)
            for child in (value.values() if isinstance(value, Mapping) else value)
        ]
        if not front:
            return False
    return any(isinstance(value, Mapping | list | tuple) for value in front)


def whole(raw: Any, *path: str) -> int | None:
    """Return the integer at `path`; None where there is none."""
    found = at(raw, path)
    return found if isinstance(found, int) and not isinstance(found, bool) else None


def time(raw: Any, *path: str) -> float | None:
    """Return the time at `path` in epoch seconds; None where there is none."""
    try:
        moment = datetime.fromisoformat(text(raw, *path))
        return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def count(quantity: Any, parts: int = 1) -> int:
    """Return a quantity of whole pieces ("2", "4k", "1e3"), rounded up as Kubernetes does.

    It is counted in 1/`parts` of a piece. 0 where it is negative or not a quantity.
    """
    if isinstance(quantity, bool) or not isinstance(quantity, int | float | str):
        return 0
    return _count(str(quantity), parts)


@functools.lru_cache(maxsize=4096)  # thousands of pods request the same
def _count(quantity: str, parts: int) -> int:
    found = _QUANTITY.fullmatch(quantity)
    if found is None:
        return 0
    suffix, power = found["suffix"] or "", found["power"]
    scale = Decimal(10) ** int(power) if power is not None else _SCALES.get(suffix, Decimal(1))
    return min(math.ceil(Decimal(found["number"]) * scale * parts), _MOST)


def _json_mapping(*required: str, optional: tuple[str, ...] = (), **nested: Any) -> Any:
    """Return the schema of an object with texts under these names; other fields are skipped."""
    field, value = core_schema.typed_dict_field, core_schema.str_schema()
    fields = {name: field(value) for name in required}
    fields |= {name: field(value, required=False) for name in optional}
    return core_schema.typed_dict_schema(fields | {name: field(schema) for name, schema in nested.items()})


_ITEM: Final = _json_mapping(metadata=_json_mapping("name", "uid", "resourceVersion", optional=("namespace",)))
_LIST: Final = SchemaValidator(
    _json_mapping(
        metadata=_json_mapping("resourceVersion", optional=("continue",)),
        items=core_schema.nullable_schema(core_schema.list_schema(_ITEM)),
    )
)


def identities_of(body: bytes) -> Raw:
    """Parse a page of a list with namespace, name, UID and version of each object. Raises `ValueError`."""
    page: Raw = _LIST.validate_json(body)
    return page
