"""What the operator writes reaches the object that it is meant for, and nobody's namesake: by a real API server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

from apiserver import ApiServer
from connections import connections_closed
from crd_cases import jobs_of
from mutations import MINIMAL

from espalier_core.k8s import resources
from espalier_core.types.reasons import Reason
from espalier_core.types.status import JobStatus, SchedulingStatus, StandingReclaim, TimeBudgetStatus
from espalier_operator.kube.client import KubeClient, api_access

POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "minimal"},
    "spec": {"containers": [{"name": "one", "image": "none"}]},
}


def asked(server: ApiServer, ask: Callable[[KubeClient], Awaitable[Any]]) -> Any:
    """Return what the operator's client gets."""

    async def main() -> Any:
        async with api_access(server.kubeconfig) as api:
            got = await ask(KubeClient(api))
        await connections_closed()
        return got

    return asyncio.run(main())


def body(status: JobStatus) -> dict[str, Any]:
    return status.model_dump(mode="json", by_alias=True, exclude_none=True)


def made_again(server: ApiServer, path: str, manifest: dict[str, Any]) -> tuple[str, str]:
    """Make an object, delete it and make it again; return both UIDs."""
    first = server.request("POST", path, manifest)["metadata"]["uid"]
    server.request("DELETE", f"{path}/minimal", {"gracePeriodSeconds": 0})
    return first, server.request("POST", path, manifest)["metadata"]["uid"]


def test_a_status_is_for_one_job_and_nobody_s_namesake(api_server: ApiServer, namespace: str) -> None:
    path = jobs_of(namespace)
    first, second = made_again(api_server, path, MINIMAL)
    status = body(JobStatus(time_budget=TimeBudgetStatus(used_seconds=7)))

    version = api_server.request("GET", f"{path}/minimal")["metadata"]["resourceVersion"]

    def put(name: str, uid: str) -> Any:
        return asked(
            api_server, lambda client: client.put_status(resources.JOBS, namespace, name, uid, version, status)
        )

    assert put("minimal", first) is None
    assert "status" not in api_server.request("GET", f"{path}/minimal")
    assert put("nobody", first) is None
    assert put("minimal", second)["status"]["timeBudget"]["usedSeconds"] == 7
    assert api_server.request("GET", f"{path}/minimal")["status"]["timeBudget"]["usedSeconds"] == 7
    status["timeBudget"]["usedSeconds"] = 8
    assert put("minimal", second) is None, "the job has changed since this version"
    assert api_server.request("GET", f"{path}/minimal")["status"]["timeBudget"]["usedSeconds"] == 7
    api_server.request("DELETE", f"{path}/minimal")


def test_a_status_takes_the_place_of_what_was_there(api_server: ApiServer, namespace: str) -> None:
    path = jobs_of(namespace)
    made = api_server.request("POST", path, MINIMAL)["metadata"]
    reclaim = StandingReclaim(extra=1, deadline=datetime(2026, 1, 1, tzinfo=UTC), reason=Reason.NEEDED_BY_OTHER_JOB)
    with_it = body(JobStatus(scheduling=SchedulingStatus(reclaim=reclaim, pod_uids=("x",))))
    without = body(JobStatus(time_budget=TimeBudgetStatus(used_seconds=1)))

    def put(status: dict[str, Any], version: str) -> Any:
        place = resources.JOBS, namespace, "minimal", made["uid"], version
        return asked(api_server, lambda client: client.put_status(*place, status))

    first = put(with_it, made["resourceVersion"])
    found = first, put(without, first["metadata"]["resourceVersion"])
    assert found[0]["status"]["scheduling"]["reclaim"]["reason"] == "NeededByOtherJob"
    assert "reclaim" not in found[1]["status"]["scheduling"]
    assert found[1]["status"]["timeBudget"]["usedSeconds"] == 1
    api_server.request("DELETE", f"{path}/minimal")


def test_a_patch_is_for_one_pod_and_nobody_s_namesake(api_server: ApiServer, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/pods"
    first, second = made_again(api_server, path, POD)
    note = {"metadata": {"annotations": {"note": "x"}}}

    def patch(uid: str) -> Any:
        return asked(api_server, lambda client: client.patch(resources.PODS, namespace, "minimal", uid, note))

    assert patch(first) is None
    assert "annotations" not in api_server.request("GET", f"{path}/minimal")["metadata"]
    assert patch(second)["metadata"]["annotations"] == {"note": "x"}
    api_server.request("DELETE", f"{path}/minimal", {"gracePeriodSeconds": 0})
