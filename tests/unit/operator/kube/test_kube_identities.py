"""Lists of metadata alone: which objects there are, and of which version."""

from __future__ import annotations

import json
from typing import Any

import pytest

from espalier_operator.kube.reading import identities_of


def test_only_what_tells_an_object_from_another_is_kept() -> None:
    known = {"name": "p", "namespace": "ns", "uid": "u", "resourceVersion": "7"}
    managed = [{"manager": "kubelet", "fieldsV1": {"f:status": {}}}]
    item = {"kind": "PartialObjectMetadata", "metadata": {**known, "managedFields": managed, "labels": {"a": "b"}}}
    node = {"metadata": {"name": "n", "uid": "v", "resourceVersion": "8"}, "spec": {"unschedulable": True}}
    about = {"resourceVersion": "9", "continue": "next"}
    page = {"kind": "PartialObjectMetadataList", "metadata": {**about, "remainingItemCount": 3}, "items": [item, node]}
    items = [{"metadata": known}, {"metadata": node["metadata"]}]
    assert identities_of(json.dumps(page).encode()) == {"metadata": about, "items": items}
    assert identities_of(json.dumps({"metadata": about, "items": None}).encode())["items"] is None


@pytest.mark.parametrize("body", ["", "<html>", [], {"metadata": {}}, {"metadata": {"resourceVersion": "1"}}])
def test_what_is_no_list_is_refused(body: Any) -> None:
    with pytest.raises(ValueError, match=r"JSON|valid|required"):
        identities_of(body.encode() if isinstance(body, str) else json.dumps(body).encode())
