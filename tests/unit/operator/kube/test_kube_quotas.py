"""What ResourceQuotas and LimitRanges say of pods."""

from __future__ import annotations

from typing import Any

import pytest

from espalier_operator.kube.objects.limits import largest, parse_limit_range, parse_quota, scopes_of, with_defaults
from espalier_operator.kube.objects.nodes import requests_of
from espalier_operator.model.constraints import NodeSelectorRequirement
from operator_world.kube_objects import GPU


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


DEFAULTS = {"cpu": "2", "memory": "1Gi"}


def container(**requests: str) -> dict[str, Any]:
    return {"type": "Container", "defaultRequest": requests}


@pytest.mark.parametrize(
    ("limits", "defaults"),
    [
        ([container(cpu="2")], {"cpu": "2"}),
        ([{"type": "Pod", "max": {"cpu": "2"}}, {"type": "PersistentVolumeClaim", "min": {"storage": "1Gi"}}], None),
        ([{"type": "Container", "max": {"cpu": "2"}}], None),
        ([container(cpu="500m"), container(cpu="1")], {"cpu": "1"}),
        ([{"type": "Container", "defaultRequest": 7}, None, "x"], None),
    ],
)
def test_only_containers_have_defaults(limits: list[Any], defaults: dict[str, str] | None) -> None:
    assert parse_limit_range({"spec": {"limits": limits}}) == defaults


def test_of_several_limit_ranges_the_largest_request_counts() -> None:
    """Which of them the API server takes first is not defined."""
    given = [{"cpu": "900m", "memory": "1Gi"}, {"cpu": "1"}, {"memory": "1000Mi"}]
    assert largest(given) == largest(reversed(given)) == {"cpu": "1", "memory": "1Gi"}
    assert largest([]) == {}


@pytest.mark.parametrize(
    ("spec", "cpu", "memory"),
    [
        ({"containers": [{}]}, 2000, 2**30),
        ({}, 2000, 2**30),
        ({"containers": [{"resources": {"requests": {"cpu": "1"}}}, {}]}, 3000, 2**31),
        ({"containers": [{"resources": {"limits": {"cpu": "1"}}}]}, 1000, 2**30),
        ({"containers": [{"resources": {"requests": {"cpu": 0}}}]}, None, 2**30),
        ({"containers": [{}], "initContainers": [{"resources": {"requests": {"cpu": "5"}}}]}, 5000, 2**30),
        ({"containers": [{}], "initContainers": [{"restartPolicy": "Always"}]}, 4000, 2**31),
        ({"containers": [{}], "resources": {"limits": {"cpu": "3"}}}, 3000, 2**30),
        ({"containers": [{"resources": None}, None]}, 2000, 2**30),
    ],
)
def test_a_container_requests_the_default_of_what_it_does_not_name(
    spec: dict[str, Any], cpu: int | None, memory: int
) -> None:
    found = dict(requests_of(with_defaults(spec, DEFAULTS), GPU))
    assert (found.get("cpu"), found["memory"]) == (cpu, memory)
