"""The manifests of `deploy/` on a real API server: they apply, pods pass restricted security, rights are enough."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from apiserver import ApiServer

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
