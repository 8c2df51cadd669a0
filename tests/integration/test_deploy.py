"""The manifests of `deploy/` on a real API server: they apply, pods pass restricted security, rights are enough."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from apiserver import ApiServer, ServerError

from espalier_core.k8s import resources
from espalier_core.types.status import JobStatus
from espalier_operator.kube.objects import manifests as objects
from espalier_operator.kube.objects.worker_pod import worker_pod
from espalier_operator.kube.settings import KubeSettings
from espalier_operator.model import WorkerRole
from operator_world.kube_objects import kube_job

PROJECT = Path(__file__).parents[2]
SYSTEM = "espalier-system"


@pytest.fixture(scope="module")
def installed(kubernetes_binaries: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """Give an API server of its own on which crds/ and deploy/ are applied: nothing would empty the namespace."""
    with ApiServer(kubernetes_binaries, tmp_path_factory.mktemp("deploy")) as server:
        server.install(PROJECT / "crds")
        said = server.kubectl("apply", "--filename", str(PROJECT / "deploy"), check=False)
        assert "rror" not in said
        assert "Warning" not in said, "pod security warns of what it would refuse"
        server.namespace("ns")
        yield server


@pytest.fixture
def operator(installed: ApiServer) -> Iterator[httpx.Client]:
    """Give a client with the operator's rights."""
    with installed.client(installed.token(SYSTEM, "espalier-operator")) as client:
        yield client


def test_applying_twice_changes_nothing(installed: ApiServer) -> None:
    said = installed.kubectl("apply", "--filename", str(PROJECT / "deploy"))
    assert all(line.endswith("unchanged") for line in said.splitlines()), said


@pytest.mark.parametrize("part", ["operator", "agent"])
def test_pods_of_the_deployments_are_admitted(installed: ApiServer, part: str) -> None:
    found = installed.request("GET", f"/apis/apps/v1/namespaces/{SYSTEM}/deployments/espalier-{part}")
    template = found["spec"]["template"]
    pod = {"metadata": {**template["metadata"], "name": f"{part}-try"}, "spec": template["spec"]}
    made = installed.request("POST", f"/api/v1/namespaces/{SYSTEM}/pods", pod, dryRun="All")
    assert made["spec"]["serviceAccountName"] == f"espalier-{part}"


def test_a_pod_that_is_not_restricted_is_refused(installed: ApiServer) -> None:
    spec = {"serviceAccountName": "espalier-agent", "containers": [{"name": "root", "image": "any"}]}
    pod = {"metadata": {"name": "root"}, "spec": spec}
    with pytest.raises(ServerError, match="violates PodSecurity"):
        installed.request("POST", f"/api/v1/namespaces/{SYSTEM}/pods", pod, dryRun="All")


def test_the_operator_may_make_all_of_a_jobs_objects(operator: httpx.Client) -> None:
    job = kube_job()
    worker = worker_pod(job, JobStatus(), WorkerRole.EXTRA, 0, 1, KubeSettings())
    for manifest in (*objects.owned_objects(job), worker):
        path = resources.resource_of(manifest).path(manifest["metadata"]["namespace"])
        answer = operator.post(path, json=manifest)
        assert answer.is_success, answer.text
        assert operator.get(f"{path}/{manifest['metadata']['name']}").is_success


def test_the_operator_may_read_what_it_watches(operator: httpx.Client) -> None:
    watched = (
        *(resources.JOBS, resources.PODS, resources.NODES, resources.CONFIG_MAPS, resources.PRIORITY_CLASSES),
        *(resources.QUEUES, resources.RESOURCE_QUOTAS, resources.LIMIT_RANGES, resources.CLAIMS, resources.VOLUMES),
    )
    for resource in watched:
        for watch in ({}, {"watch": "true", "timeoutSeconds": "1"}):
            answer = operator.get(resource.path(), params=watch)
            assert answer.is_success, answer.text


REFUSED: list[tuple[str, str, Any]] = [
    ("GET", "/api/v1/secrets", None),
    ("GET", f"/api/v1/namespaces/{SYSTEM}/secrets", None),
    ("GET", "/apis/coordination.k8s.io/v1/namespaces/ns/leases", None),
    ("POST", "/api/v1/namespaces/ns/pods/any/exec", None),
    ("DELETE", "/api/v1/namespaces/ns", None),
    ("DELETE", "/api/v1/nodes/any", None),
    ("PATCH", "/apis/espalier.dev/v1alpha1/namespaces/ns/adaptivetrainingjobs/any", {"spec": {}}),
    ("POST", "/apis/rbac.authorization.k8s.io/v1/clusterroles", {"metadata": {"name": "more"}}),
    (
        "POST",
        "/apis/rbac.authorization.k8s.io/v1/namespaces/ns/roles",
        {"metadata": {"name": "more"}, "rules": [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}]},
    ),
]


@pytest.mark.parametrize(("method", "path", "body"), REFUSED, ids=[f"{method} {path}" for method, path, _ in REFUSED])
def test_the_operator_may_not(operator: httpx.Client, method: str, path: str, body: Any) -> None:
    headers = {"Content-Type": "application/merge-patch+json"} if method == "PATCH" else {}
    answer = operator.request(method, path, json=body, headers=headers)
    assert answer.status_code == 403, answer.text


def test_the_agent_may_have_tokens_reviewed_and_nothing_else(installed: ApiServer) -> None:
    token = installed.token(SYSTEM, "espalier-agent")
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
    with installed.client(token) as client:
        answer = client.post("/apis/authentication.k8s.io/v1/tokenreviews", json=review)
        assert answer.json()["status"]["authenticated"] is True
        for path in ("/api/v1/namespaces", "/api/v1/pods", "/apis/espalier.dev/v1alpha1/adaptivetrainingjobs"):
            assert client.get(path).status_code == 403
