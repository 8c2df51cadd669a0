"""What LimitRanges add to the requests of a job's workers, which is what the API server will."""

from __future__ import annotations

from typing import Any

import pytest

from espalier_operator.kube.objects.limits import largest, parse_limit_range, with_defaults
from espalier_operator.kube.objects.nodes import requests_of
from operator_world.kube_objects import GPU

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
