"""The chart's admission policy on a real API server: priorities above the limit of a queue."""

from __future__ import annotations

import time
from typing import Any

import pytest
from apiserver import JOBS, ApiServer, ServerError
from releases import Release

from waiting import PATIENCE

pytestmark = pytest.mark.slow
QUEUES = "/apis/espalier.dev/v1alpha1/queues"
HEAD = {"apiVersion": "espalier.dev/v1alpha1"}


def job(name: str, **spec: Any) -> dict[str, Any]:
    return {**HEAD, "kind": "AdaptiveTrainingJob", "metadata": {"name": name}, "spec": {"timeBudgetSeconds": 9, **spec}}


def refusal(server: ApiServer, method: str, path: str, body: dict[str, Any]) -> str:
    """Return why the API server refuses a request, empty where it does not."""
    try:
        server.request(method, path, body)
    except ServerError as error:
        return str(error)
    return ""


def test_a_priority_above_the_limit_of_the_queue_is_refused_with_the_field(release: Release) -> None:
    server = release.server
    release.run("install")
    path = f"{JOBS}/namespaces/{server.namespace()}/adaptivetrainingjobs"
    for name, limit in (("low", {"maxPriority": 5}), ("free", {})):
        server.request("POST", QUEUES, {**HEAD, "kind": "Queue", "metadata": {"name": name}, "spec": limit})
    try:
        deadline, number, found = time.monotonic() + PATIENCE, 0, ""
        while not found and time.monotonic() < deadline:  # a policy works a moment after it was made
            number += 1
            found = refusal(server, "POST", path, job(f"proud-{number}", queue="low", priority=6))
            time.sleep(0.2)
        assert "spec.priority: is 6; queue low takes at most 5 (maxPriority)" in found
        assert refusal(server, "POST", path, job("modest", queue="low", priority=5)) == ""
        assert refusal(server, "POST", path, job("elsewhere", queue="free", priority=1000)) == ""
        assert refusal(server, "POST", path, job("nowhere", queue="none", priority=1000)) == ""
        assert "spec.priority: is 7" in refusal(server, "PATCH", f"{path}/modest", {"spec": {"priority": 7}})
        assert "spec.priority: is 1000" in refusal(server, "PATCH", f"{path}/elsewhere", {"spec": {"queue": "low"}})
        server.request("PATCH", f"{QUEUES}/low", {"spec": {"maxPriority": 1}})
        assert refusal(server, "PATCH", f"{path}/modest", {"spec": {"suspend": True}}) == "", "it may still be changed"
        assert refusal(server, "PATCH", f"{path}/modest", {"spec": {"priority": 4}}) == "", "and lowered"
    finally:
        for name in ("low", "free"):
            server.request("DELETE", f"{QUEUES}/{name}")
