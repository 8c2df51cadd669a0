"""EvictionRequests on an API server that has their kind: those of Kubernetes 1.37 (alpha), by a CRD of that shape."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from apiserver import ApiServer
from operators import World

KIND = "evictionrequests.lifecycle.k8s.io"
_POD = {
    "type": "object",
    "required": ["name", "uid"],
    "properties": {key: {"type": "string"} for key in ("name", "uid")},
}
_SPEC = {
    "type": "object",
    "required": ["target", "requesterName", "intent"],
    "properties": {
        "target": {"type": "object", "properties": {"pod": _POD}},
        "requesterName": {"type": "string"},
        "intent": {"type": "string", "enum": ["Eviction", "Withdrawn"]},
    },
}
_STATUS = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
DEFINITION = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": KIND, "annotations": {"api-approved.kubernetes.io": "unapproved, for tests"}},
    "spec": {
        "group": "lifecycle.k8s.io",
        "scope": "Namespaced",
        "names": {"kind": "EvictionRequest", "plural": "evictionrequests", "singular": "evictionrequest"},
        "versions": [
            {
                "name": "v1alpha1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": _SPEC, "status": _STATUS}}},
            }
        ],
    },
}


def ask(world: World, pod: str) -> None:
    """Ask a pod to leave, as a drain does."""
    named = {"name": pod, "uid": world.pods("job")[pod]["metadata"]["uid"]}
    spec = {"target": {"pod": named}, "requesterName": "kubectl.example.com/drain", "intent": "Eviction"}
    body = {"apiVersion": "lifecycle.k8s.io/v1alpha1", "kind": "EvictionRequest", "metadata": {"name": pod}}
    path = f"/apis/lifecycle.k8s.io/v1alpha1/namespaces/{world.namespace}/evictionrequests"
    world.server.request("POST", path, {**body, "spec": spec})


def test_an_operator_notices_the_kind_and_workers_that_are_asked_to_leave_do_so(
    world: World, api_server: ApiServer, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    world.kubelet.add_node("node", 2)
    world.operate(eviction_requests=True, resync_seconds=2.0)
    preemption = {"base": "Never", "noticeSeconds": 5, "minRuntimeSeconds": 0, "cooldownSeconds": 0}
    world.jobs.make("job", maxReplicas=2, preemption=preemption)
    world.until_lent("job")
    (tmp_path / "evictionrequests.yaml").write_text(json.dumps(DEFINITION))
    request.addfinalizer(lambda: api_server.uninstall(KIND))
    api_server.install(tmp_path)
    base, extra = sorted(world.running("job"))

    ask(world, extra)
    world.until("the extra worker is given back", lambda: extra not in world.running("job"))
    world.until_event("job", "EvictionRequested")

    ask(world, base)
    stays = lambda: any(f"{base} stays" in event["message"] for event in world.jobs.events("job"))  # noqa: E731
    world.until("its base worker stays, and an Event says so", stays)
    assert base in world.running("job")
    world.jobs.change("job", preemption={**preemption, "base": "Checkpoint"})
    world.until("its base worker leaves", lambda: base not in world.running("job"))
    world.until("it resumes as another pod", lambda: [name for name in world.running("job") if "-base-" in name])
    assert world.jobs.status("job")["scheduling"].get("failures", 0) == 0
