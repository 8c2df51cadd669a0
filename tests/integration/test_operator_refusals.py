"""What the API server, or a person, says no to: told in conditions, tried again, never a silent loop."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from apiserver import ServerError
from operators import World

MOST_ANNOTATED = 256 * 1024
"""Bytes that the API server takes as annotations of one object."""


def test_a_job_that_cannot_be_run_is_reported_until_it_is_changed(world: World) -> None:
    """The API server took it; the operator says what is wrong, in the field's words."""
    world.kubelet.add_node("node", 1)
    world.operate()
    other = {"name": "trainer", "image": "trainer:dev", "resources": {"limits": {"amd.com/gpu": 1}}}
    world.jobs.make("odd", template={"spec": {"containers": [other]}})
    world.until_condition("odd", "Admitted", "False", "InvalidSpec")
    assert "no container has a limit of nvidia.com/gpu" in world.jobs.message("odd", "Admitted")
    world.until_event("odd", "InvalidSpec")
    assert world.jobs.status("odd")["observedGeneration"] == 1
    limits = {"nvidia.com/gpu": 1}
    world.jobs.change("odd", template={"spec": {"containers": [{**other, "resources": {"limits": limits}}]}})
    world.until_condition("odd", "Running", "True", "Running")
    assert world.jobs.status("odd")["observedGeneration"] == 2


def test_a_pod_that_the_api_server_never_takes_ends_the_job(world: World) -> None:
    """With the server's own words."""
    world.kubelet.add_node("node", 1)
    world.operate()
    container = {"name": "trainer", "image": "trainer:dev", "resources": {"limits": {"nvidia.com/gpu": 1}}}
    container["volumeMounts"] = [{"name": "nowhere", "mountPath": "/data"}]
    world.jobs.make("odd", template={"spec": {"containers": [container]}})
    world.until_condition("odd", "Failed", "True", "InvalidSpec")
    assert "volumeMounts" in world.jobs.message("odd", "Failed")
    assert 'Not found: "nowhere"' in world.jobs.message("odd", "Failed")
    assert world.pods("odd") == {}


def test_a_quota_keeps_a_job_from_starting_and_is_reported(world: World) -> None:
    """The planner knows no quotas for limits. It is tried again, less and less often, and starts when there is room."""
    world.kubelet.add_node("node", 1)
    operator = world.operate()
    core, hard = f"/api/v1/namespaces/{world.namespace}", {"limits.cpu": "0m"}
    limits = {"limits": [{"type": "Container", "default": {"cpu": "1m"}}]}
    world.server.request("POST", f"{core}/limitranges", {"metadata": {"name": "none"}, "spec": limits})
    quota = f"{core}/resourcequotas/none"
    world.server.request("POST", f"{core}/resourcequotas", {"metadata": {"name": "none"}, "spec": {"hard": hard}})
    world.server.request("PATCH", f"{quota}/status", {"status": {"hard": hard, "used": {"limits.cpu": "0"}}})
    world.jobs.make("job")
    world.until_condition("job", "Running", "False", "PodRejected")
    assert "exceeded quota: none" in world.jobs.message("job", "Running")
    tries = operator.client.requests["create", "pods", 403]
    assert 1 <= tries <= 3
    world.server.request("DELETE", quota)
    world.until_condition("job", "Running", "True", "Running")
    assert Counter(event["reason"] for event in world.jobs.events("job"))["PodRejected"] == 1


def test_an_object_of_the_name_that_is_somebody_else_s_is_named(world: World) -> None:
    """It is not taken over and not deleted; when its owner takes it away the job starts."""
    world.kubelet.add_node("node", 1)
    world.operate()
    path = f"/api/v1/namespaces/{world.namespace}/services"
    mine = {"metadata": {"name": "job"}, "spec": {"clusterIP": "None", "selector": {"mine": "yes"}}}
    world.server.request("POST", path, mine)
    world.jobs.make("job")
    world.until_condition("job", "Running", "False", "PodRejected")
    assert "Service 'job' exists already and is not this job's" in world.jobs.message("job", "Running")
    assert world.server.request("GET", f"{path}/job")["spec"]["selector"] == {"mine": "yes"}
    world.server.request("DELETE", f"{path}/job")
    world.until_condition("job", "Running", "True", "Running")


def test_a_status_that_somebody_else_wrote_is_written_again(world: World) -> None:
    """One writer: what a person patches in does not become the operator's memory."""
    world.kubelet.add_node("node", 1)
    operator = world.operate()
    world.jobs.make("job")
    world.until_condition("job", "Running", "True", "Running")
    generation = world.jobs.status("job")["allocation"]["generation"]
    forged = {"status": {"phase": "Complete", "allocation": {"generation": 77}, "timeBudget": {"usedSeconds": 0}}}
    world.server.request("PATCH", f"{world.jobs.path}/job/status", forged)

    def mended() -> bool:
        operator.wake()
        status = world.jobs.status("job")
        return bool(status["phase"] == "Running" and status["allocation"]["generation"] == generation)

    world.until("it is as it was", mended)


def test_a_leader_that_cannot_be_told_gives_back_what_it_was_lent(world: World) -> None:
    """The API server takes no more annotations of its pod; its workers are ended, and others start, all the same."""
    world.kubelet.add_node("node", 2)
    world.operate()
    world.trainers.stubborn.add("first")
    quick = {"noticeSeconds": 1, "cooldownSeconds": 0, "minRuntimeSeconds": 0}
    world.jobs.make("first", maxReplicas=2, preemption=quick)
    world.until_lent("first")
    leader = f"/api/v1/namespaces/{world.namespace}/pods/first-base-0-0"
    full = world.until("no annotation fits any more", lambda: filled(world, leader))
    world.jobs.make("second")
    world.until_condition("second", "Running", "True", "Running")
    assert world.running("first") == ["first-base-0-0"]
    assert world.server.request("GET", leader)["metadata"]["annotations"] == full


def filled(world: World, pod: str) -> Any:
    """Fill the annotations of a pod and return them; None where the operator has written one meanwhile."""
    known = world.server.request("GET", pod)["metadata"]
    left = MOST_ANNOTATED - sum(len(name) + len(text) for name, text in known["annotations"].items()) - len("filled")
    metadata = {"annotations": {"filled": "x" * left}, "resourceVersion": known["resourceVersion"]}
    try:
        return world.server.request("PATCH", pod, {"metadata": metadata})["metadata"]["annotations"]
    except ServerError:
        return None


def test_a_namespace_that_goes_is_no_trouble(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing can be made in it any more, which nobody is warned of."""
    world.kubelet.add_node("node", 1)
    operator = world.operate()
    world.jobs.make("job")
    world.until_condition("job", "Running", "True", "Running")
    world.server.request("DELETE", f"/api/v1/namespaces/{world.namespace}")
    world.server.request("DELETE", f"/api/v1/namespaces/{world.namespace}/pods/job-base-0-0", gracePeriodSeconds="0")
    world.until("the next leader is refused", lambda: operator.client.requests["create", "pods", 403] > 0)
    operator.stop()
    said = [record.levelname for record in caplog.records if "being terminated" in record.getMessage()]
    assert set(said) <= {"DEBUG"}
