"""Queues on a real API server: what it refuses, and how jobs wait for quotas."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from apiserver import ApiServer, ServerError
from operators import World

QUEUES = "/apis/espalier.dev/v1alpha1/queues"


def queue(name: str, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": "espalier.dev/v1alpha1", "kind": "Queue", "metadata": {"name": name}, "spec": spec}


@pytest.fixture
def team(world: World) -> Iterator[str]:
    """Give the name of a queue with one GPU, for the world's namespace."""
    name = f"team-{world.namespace}"[:52]
    quotas = [{"nominal": 1}]
    world.server.request("POST", QUEUES, queue(name, namespaces=[world.namespace], maxPriority=5, quotas=quotas))
    yield name
    world.server.request("DELETE", f"{QUEUES}/{name}")


@pytest.mark.parametrize(
    ("name", "spec", "problem"),
    [
        ("a.b", {}, "contains '.'; replace it by '-'"),
        ("a" * 53, {}, "has more than 52 characters"),
        ("a", {"quotas": [{"nominal": 1}, {"nominal": 2}]}, "has two quotas for one gpuType, or two without one"),
        ("a", {"quotas": [{"nominal": 1, "borrowingLimit": 1}]}, "the queue is in no cohort"),
        ("a", {"quotas": [{"nominal": -1}]}, "spec.quotas[0].nominal"),
        ("a", {"quotas": [{}]}, "spec.quotas[0].nominal"),
        ("a", {"cohort": "Not A Name"}, "spec.cohort"),
        ("a", {"colour": "red"}, "unknown field"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_the_field(
    api_server: ApiServer, name: str, spec: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ServerError, match=re.escape(problem)):
        api_server.request("POST", QUEUES, queue(name, **spec), fieldValidation="Strict", dryRun="All")


def test_the_status_of_a_queue_tells_usage_and_who_waits(world: World, team: str) -> None:
    """It follows the jobs, and writes are bounded: many plans are one write."""
    world.kubelet.add_node("node", 4)
    operator = world.operate()
    world.jobs.make("first", queue=team)
    world.jobs.make("second", queue=team)
    world.until_condition("second", "Admitted", "False", "QuotaExceeded")

    def status() -> dict[str, Any]:
        found: dict[str, Any] = world.server.request("GET", f"{QUEUES}/{team}").get("status", {})
        return found

    world.until("both are counted", lambda: (status().get("admittedJobs"), status().get("pendingJobs")) == (1, 1))
    found = status()
    assert (found["usedGpus"], found["borrowedGpus"]) == (1, 0)
    assert found["usage"] == [{"nominal": 1, "used": 1, "borrowed": 0}]
    assert [(each["type"], each["status"], each["reason"]) for each in found["conditions"]] == [
        ("Active", "True", "Ready"),
        ("Exhausted", "True", "JobsWait"),
    ]
    world.server.request("PATCH", f"{QUEUES}/{team}", {"spec": {"quotas": [{"nominal": 2}]}})
    world.until_condition("second", "Running", "True", "Running")
    world.until("it follows", lambda: status()["usage"] == [{"nominal": 2, "used": 2, "borrowed": 0}])
    assert status()["conditions"][1]["status"] == "False"
    for number in range(10):
        world.server.request("PATCH", f"{world.jobs.path}/first", {"metadata": {"labels": {"number": f"{number}"}}})
        operator.wake()
    assert operator.client.requests["patch", "queues", 200] <= 4
    assert not [key for key in operator.client.requests if key[1] == "queues" and key[2] >= 400]
