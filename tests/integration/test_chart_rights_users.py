"""The roles that the chart makes for users, on a real API server: who may edit or view a namespace, and its jobs."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest
from apiserver import JOBS, ApiServer
from charts import Raw, rights
from releases import Release

RBAC = "/apis/rbac.authorization.k8s.io/v1"
MERGE = {"Content-Type": "application/merge-patch+json"}
ROLES = ["edit", "view"]


def verbs(server: ApiServer, role: str, resource: str) -> set[str]:
    """Return what a ClusterRole allows to do with a resource."""
    rules = [rule for rule in server.request("GET", f"{RBAC}/clusterroles/{role}")["rules"] if "resources" in rule]
    return {verb for _, each, verb in rights(rules) if each == resource}


def test_they_may_do_with_jobs_what_they_may_do_with_kubernetes_own_deployments(release: Release) -> None:
    """No verb more, no verb less: Kubernetes' roles are the measure."""
    release.run("install")
    server = release.server
    view = verbs(server, "system:aggregate-to-view", "deployments")
    edit = verbs(server, "system:aggregate-to-edit", "deployments")
    assert "get" in view, "the API server has brought its own roles"
    assert "create" in edit
    for part in ("", "/scale", "/status"):
        view = verbs(server, "system:aggregate-to-view", f"deployments{part}")
        edit = verbs(server, "system:aggregate-to-edit", f"deployments{part}")
        assert verbs(server, "espalier-jobs-view", f"adaptivetrainingjobs{part}") == view
        assert verbs(server, "espalier-jobs-edit", f"adaptivetrainingjobs{part}") == edit | view


@pytest.mark.parametrize(("role", "code"), [("edit", 200), ("view", 403)])
def test_who_may_edit_jobs_may_scale_them(release: Release, role: str, code: int) -> None:
    release.run("install")
    server = release.server
    namespace = bind(server, f"espalier-jobs-{role}")
    path = f"{JOBS}/namespaces/{namespace}/adaptivetrainingjobs"
    head = {"apiVersion": "espalier.dev/v1alpha1", "kind": "AdaptiveTrainingJob"}
    spec = {"timeBudgetSeconds": 100, "minReplicas": 1, "maxReplicas": 1}
    server.request("POST", path, {**head, "metadata": {"name": "made"}, "spec": spec})
    with server.client(server.token(namespace, "default")) as client:
        scale = client.get(f"{path}/made/scale")
        assert scale.status_code == 200
        answer = client.patch(f"{path}/made/scale", json={"spec": {"replicas": 2}}, headers=MERGE)
    assert answer.status_code == code, answer.text


def bind(server: ApiServer, role: str) -> str:
    """Bind the ServiceAccount of a new namespace to a ClusterRole there; return the namespace."""
    namespace = server.namespace()
    subject = {"kind": "ServiceAccount", "name": "default", "namespace": namespace}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role}
    body = {"metadata": {"name": "user"}, "roleRef": reference, "subjects": [subject]}
    server.request("POST", f"{RBAC}/namespaces/{namespace}/rolebindings", body)
    return namespace


def attempts(client: httpx.Client, namespace: str) -> dict[str, Callable[[], httpx.Response]]:
    """Return by verb how it is done with jobs of a namespace, in an order in which each finds what it needs."""
    path = f"{JOBS}/namespaces/{namespace}/adaptivetrainingjobs"
    head = {"apiVersion": "espalier.dev/v1alpha1", "kind": "AdaptiveTrainingJob"}

    def body(name: str, **more: str) -> Raw:
        return {**head, "metadata": {"name": name, **more}, "spec": {"timeBudgetSeconds": 100}}

    def update() -> httpx.Response:
        there = client.get(f"{path}/made")
        version = there.json()["metadata"].get("resourceVersion", "1")
        return client.put(f"{path}/made", json=body("made", resourceVersion=version))

    return {
        "create": lambda: client.post(path, json=body("made")),
        "get": lambda: client.get(f"{path}/made"),
        "list": lambda: client.get(path),
        "watch": lambda: client.get(path, params={"watch": "1", "timeoutSeconds": "1"}),
        "patch": lambda: client.patch(f"{path}/made", json={"spec": {"suspend": True}}, headers=MERGE),
        "update": update,
        "delete": lambda: client.delete(f"{path}/made"),
        "deletecollection": lambda: client.delete(path),
    }


@pytest.mark.parametrize("role", ROLES)
def test_each_verb_is_one_that_can_be_used_and_no_other_can(release: Release, role: str) -> None:
    release.run("install")
    server = release.server
    allowed = verbs(server, f"espalier-jobs-{role}", "adaptivetrainingjobs")
    namespace, other = bind(server, f"espalier-jobs-{role}"), server.namespace()
    for place in (namespace, other):
        with server.client(server.admin_token) as admin:
            # What reads, changes or deletes needs something to do so with; whoever may make it makes it again.
            answer = attempts(admin, place)["create"]()
            assert answer.status_code == 201, answer.text
            if place == namespace and "create" in allowed:
                assert attempts(admin, place)["delete"]().is_success
        with server.client(server.token(namespace, "default")) as client:
            codes = {verb: attempt().status_code for verb, attempt in attempts(client, place).items()}
        assert allowed <= codes.keys(), "each is tried"
        for verb, code in codes.items():
            fine = place == namespace and verb in allowed
            assert (code < 300) if fine else (code == 403), (place, verb, code)


@pytest.mark.parametrize("role", ROLES)
def test_neither_touches_a_status(release: Release, role: str) -> None:
    """It is the operator's memory."""
    release.run("install")
    server = release.server
    namespace = bind(server, f"espalier-jobs-{role}")
    path = f"{JOBS}/namespaces/{namespace}/adaptivetrainingjobs/made"
    with server.client(server.admin_token) as admin:
        assert attempts(admin, namespace)["create"]().status_code == 201
    with server.client(server.token(namespace, "default")) as client:
        change = {"status": {"phase": "Complete"}}
        assert client.patch(f"{path}/status", json=change, headers=MERGE).status_code == 403
