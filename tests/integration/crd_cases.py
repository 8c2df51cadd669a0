"""What tests of the CRD share: paths, jobs changed in one place, answers taken apart."""

from __future__ import annotations

import copy
from typing import Any

import httpx
from apiserver import JOBS


def jobs_of(namespace: str) -> str:
    """Return the path of the jobs in `namespace`."""
    return f"{JOBS}/namespaces/{namespace}/adaptivetrainingjobs"


def changed(document: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """Return a copy of `document` with `value` at the dotted `path`; `...` takes the field out."""
    result = copy.deepcopy(document)
    node: Any = result
    *parents, last = [int(part) if part.isdecimal() else part.replace("~", ".") for part in path.split(".")]
    for part in parents:
        node = node.setdefault(part, {}) if isinstance(node, dict) else node[int(part)]
    if value is ...:
        del node[last]
    else:
        node[last] = value
    return result


def causes(answer: httpx.Response) -> dict[str, str]:
    """Return what the answer says is wrong, by field."""
    assert answer.status_code == 422, answer.text
    said: dict[str, str] = {}
    for cause in answer.json()["details"]["causes"]:
        said[cause["field"]] = f"{said.get(cause['field'], '')} {cause['message']}".strip()
    return said
