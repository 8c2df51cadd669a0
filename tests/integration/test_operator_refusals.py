"""What the API server, or a person, says no to: told in conditions, tried again, never a silent loop."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from apiserver import ServerError
from operators import World

from espalier_core.types.report import MAX_REPORT_BYTES

MOST_ANNOTATED = 256 * 1024
"""Bytes that the API server takes as annotations of one object."""


def message(world: World, job: str, kind: str) -> str:
    """Return the message of a condition."""
    found = [entry["message"] for entry in world.jobs.status(job)["conditions"] if entry["type"] == kind]
    return str(found[0])


def test_a_job_that_cannot_be_run_is_reported_until_it_is_changed(world: World) -> None:
    """The API server took it; the operator says what is wrong, in the field's words."""
    world.kubelet.add_node("node", 1)
    world.operate()
    other = {"name": "trainer", "image": "trainer:dev", "resources": {"limits": {"amd.com/gpu": 1}}}
    world.jobs.make("odd", template={"spec": {"containers": [other]}})
    world.until_condition("odd", "Admitted", "False", "InvalidSpec")
    assert "no container has a limit of nvidia.com/gpu" in message(world, "odd", "Admitted")
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
    assert "volumeMounts" in message(world, "odd", "Failed")
    assert 'Not found: "nowhere"' in message(world, "odd", "Failed")
    assert world.pods("odd") == {}


def test_a_quota_keeps_a_job_from_starting_and_is_reported(world: World) -> None:
    """The planner knows no quotas for limits. It is tried again, less and less often, and starts when there is room."""
    world.kubelet.add_node("node", 1)
    operator = world.operate()
    quota = world.make_quota("none", "0", is_counted=False)
    world.jobs.make("job")
    world.until_condition("job", "Running", "False", "PodRejected")
    assert "exceeded quota: none" in message(world, "job", "Running")
    tries = operator.client.requests["create", "pods", 403]
    assert 1 <= tries <= 3
    world.server.request("DELETE", quota)
    world.until_condition("job", "Running", "True", "Running")
    assert Counter(event["reason"] for event in world.jobs.events("job"))["PodRejected"] == 1


def test_a_quota_for_some_pods_alone_keeps_these_from_starting(world: World) -> None:
    """The planner knows its scope: the job takes no GPUs, and says which quota has no room."""
    world.kubelet.add_node("node", 1)
    operator = world.operate()
    quota = world.make_quota("none", "0", "NotTerminating")
    world.make_quota("others", "0", "Terminating")
    world.jobs.make("job")
    world.until_condition("job", "Admitted", "False", "ResourceQuotaExceeded")
    assert operator.client.requests["create", "pods", 403] == 0
    world.server.request("DELETE", quota)
    world.until_condition("job", "Running", "True", "Running")


def test_an_object_of_the_name_that_is_somebody_else_s_is_named(world: World) -> None:
    """It is not taken over and not deleted; when its owner takes it away the job starts."""
    world.kubelet.add_node("node", 1)
    world.operate()
    path = f"/api/v1/namespaces/{world.namespace}/services"
    mine = {"metadata": {"name": "job"}, "spec": {"clusterIP": "None", "selector": {"mine": "yes"}}}
    world.server.request("POST", path, mine)
    world.jobs.make("job")
    world.until_condition("job", "Running", "False", "PodRejected")
    assert "Service 'job' exists already and is not this job's" in message(world, "job", "Running")
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


def test_labels_make_nobody_a_worker_and_reports_of_strangers_are_not_read(world: World) -> None:
    """What belongs to a job is said by its owner reference alone."""
    world.kubelet.add_node("node", 2)
    operator = world.operate()
    labels = {"espalier.dev/job": "job", "espalier.dev/role": "base", "espalier.dev/index": "0"}
    world.server.request(
        "POST",
        f"/api/v1/namespaces/{world.namespace}/pods",
        {
            "metadata": {"name": "stranger", "labels": labels},
            "spec": {
                "containers": [
                    {"name": "c", "image": "c:1", "resources": {"limits": {"nvidia.com/gpu": "1"}}},
                ]
            },
        },
    )
    world.kubelet.wait_running(world.namespace, "stranger")
    world.trainers.silent.add("job")
    world.jobs.make("job")
    world.until("its leader runs", lambda: "job-base-0-0" in world.running("job"))
    roles = {worker.name.rpartition("/")[2]: str(worker.role) for worker in operator.snapshot.workers}
    assert roles["stranger"] == "foreign"
    world.server.request(
        "POST",
        f"/api/v1/namespaces/{world.namespace}/configmaps",
        {
            "metadata": {"name": "forged-report", "labels": {"espalier.dev/report": "true"}},
            "data": {"report.json": "{}"},
        },
    )
    world.until_condition("job", "Running", "False", "Starting")


def test_another_tenant_cannot_speak_for_a_job(world: World) -> None:
    """A pod and a report that name a job of another namespace as their owner: the job does not notice."""
    world.kubelet.add_node("node", 1)
    store = world.operate().operator.store
    job = world.jobs.make("victim")
    world.until_condition("victim", "Running", "True", "Running")
    owner = {
        "apiVersion": "espalier.dev/v1alpha1",
        "kind": "AdaptiveTrainingJob",
        "name": "victim",
        "uid": job["metadata"]["uid"],
        "controller": True,
    }
    labels = {"app.kubernetes.io/managed-by": "espalier", "espalier.dev/job": "victim", "espalier.dev/role": "base"}
    evil = world.server.namespace()
    pods = f"/api/v1/namespaces/{evil}/pods"
    world.server.request(
        "POST",
        pods,
        {
            "metadata": {"name": "victim-base-0-0", "labels": labels, "ownerReferences": [owner]},
            "spec": {"containers": [{"name": "trainer", "image": "c:1"}]},
        },
    )
    ended = {"terminated": {"exitCode": 2, "startedAt": "2030-01-01T00:00:00Z", "finishedAt": "2030-01-01T00:00:01Z"}}
    status = {"phase": "Failed", "containerStatuses": [{"name": "trainer", "state": ended}]}
    world.server.request("PATCH", f"{pods}/victim-base-0-0/status", {"status": status})
    words = {"phase": "Failed", "reason": "LossNotFinite", "incarnation": "x", "updatedTime": "2030-01-01T00:00:00Z"}
    world.server.request(
        "POST",
        f"/api/v1/namespaces/{evil}/configmaps",
        {
            "metadata": {
                "name": "victim-report",
                "labels": {"espalier.dev/report": "true"},
                "ownerReferences": [owner],
            },
            "data": {"report.json": json.dumps(words)},
        },
    )
    world.until("the operator has counted them", lambda: store.misattributed() == {"pods": 1, "configmaps": 1})
    world.jobs.make("later")
    world.until_condition("later", "Admitted", "False", "NoFreeGPU")
    status = world.jobs.status("victim")
    assert (status["phase"], status["restarts"], status["preemptions"]) == ("Running", 0, 0)
    assert world.running("victim") == ["victim-base-0-0"]
    assert "annotations" not in world.server.request("GET", f"{pods}/victim-base-0-0")["metadata"]


def test_reports_that_are_too_large_are_shown_and_delay_nobody(world: World) -> None:
    """A hundred of them: another job starts meanwhile, and the next report of ordinary size counts."""
    world.kubelet.add_node("node", 2)
    store = world.operate().operator.store
    world.trainers.silent.add("loud")
    world.jobs.make("loud")
    world.until("its leader runs", lambda: "loud-base-0-0" in world.running("loud"))
    path = f"/api/v1/namespaces/{world.namespace}/configmaps/loud-report"
    for size in range(MAX_REPORT_BYTES + 1, MAX_REPORT_BYTES + 101):
        world.server.request("PATCH", path, {"data": {"report.json": "x" * size}})
    world.jobs.make("other")
    world.until_condition("other", "Running", "True", "Running")
    world.until_event("loud", "NoReport")
    messages = {event["message"] for event in world.jobs.events("loud") if event["reason"] == "NoReport"}
    assert any("data[report.json] of its report ConfigMap has more than 131072 bytes" in each for each in messages)
    world.until("the last one is counted", lambda: store.reports.unread()["TooLarge"] == 1)
    world.trainers.silent.discard("loud")
    world.until_condition("loud", "Running", "True", "Running")
    world.until("none is left", lambda: not any(store.reports.unread().values()))


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
