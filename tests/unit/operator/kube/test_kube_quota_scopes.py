"""The scopes of ResourceQuotas, and which of them a pod is in."""

from __future__ import annotations

from typing import Any

import pytest

from espalier_operator.kube.objects.limits import parse_quota, scopes_of
from espalier_operator.model.constraints import NodeSelectorRequirement


@pytest.mark.parametrize(
    ("spec", "scopes"),
    [
        ({}, {"NotTerminating", "BestEffort"}),
        ({"activeDeadlineSeconds": 60}, {"Terminating", "BestEffort"}),
        ({"containers": [{"resources": {"limits": {"nvidia.com/gpu": 1}}}]}, {"NotTerminating", "BestEffort"}),
        ({"containers": [{"resources": {"limits": {"memory": "1Gi"}}}]}, {"NotTerminating", "NotBestEffort"}),
        ({"initContainers": [{"resources": {"requests": {"cpu": "1"}}}]}, {"NotTerminating", "NotBestEffort"}),
        ({"resources": {"requests": {"cpu": 1}}}, {"NotTerminating", "NotBestEffort"}),
        ({"containers": [{"resources": {"requests": {"cpu": 0}}}]}, {"NotTerminating", "BestEffort"}),
        (
            {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"namespaces": ["a"]}]}}},
            {"NotTerminating", "BestEffort", "CrossNamespacePodAffinity"},
        ),
    ],
)
def test_the_scopes_of_a_pod(spec: dict[str, Any], scopes: set[str]) -> None:
    assert dict(scopes_of(spec, None)).keys() == scopes
    assert dict(scopes_of(spec, "high"))["PriorityClass"] == "high"


@pytest.mark.parametrize(
    ("spec", "scopes"),
    [
        ({}, ()),
        ({"scopes": ["BestEffort"]}, (NodeSelectorRequirement("BestEffort", "Exists"),)),
        (
            {
                "scopeSelector": {
                    "matchExpressions": [{"scopeName": "PriorityClass", "operator": "In", "values": ["a", "b"]}]
                }
            },
            (NodeSelectorRequirement("PriorityClass", "In", ("a", "b")),),
        ),
        ({"scopes": "BestEffort", "scopeSelector": []}, ()),
    ],
)
def test_the_scopes_of_a_quota(spec: dict[str, Any], scopes: tuple[NodeSelectorRequirement, ...]) -> None:
    [limit] = parse_quota({"metadata": {"name": "q"}, "spec": spec, "status": {"hard": {"pods": "1"}}})
    assert limit.scopes == scopes
