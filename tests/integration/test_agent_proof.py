"""Who may report an outcome, with tokens of a real API server and reviews by it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from apiserver import ApiServer

from espalier_agent.service.middleware import ServiceError
from espalier_agent.service.proof import Proofs
from espalier_agent.service.reviews import reviewer
from espalier_core.types.advice import JobIdentity

_RBAC = "rbac.authorization.k8s.io/v1"
_REVIEW = {"apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"]}


def account(server: ApiServer, namespace: str, name: str) -> None:
    server.request("POST", f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": name}})


def answer(proofs: Proofs, token: str, job: str) -> tuple[int, str]:
    """Return the status that a report of `job` with `token` is answered with, and the message."""
    try:
        asyncio.run(proofs.identity(f"Bearer {token}", job))
    except ServiceError as error:
        return error.status, str(error)
    return 200, ""


@pytest.fixture
def agent(cluster: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """Return the namespace and the name of an agent's account without rights; this process runs as that."""
    namespace = cluster.namespace()
    account(cluster, namespace, "agent")
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(cluster.kubeconfig_text(cluster.token(namespace, "agent")))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    return namespace, "agent"


def permit(server: ApiServer, namespace: str, name: str) -> None:
    """Give the account the one right that the chart gives."""
    role = f"review-{namespace}"
    server.request("POST", f"/apis/{_RBAC}/clusterroles", {"metadata": {"name": role}, "rules": [_REVIEW]})
    binding = {
        "metadata": {"name": role},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
    }
    server.request("POST", f"/apis/{_RBAC}/clusterrolebindings", binding)


def test_a_token_proves_its_own_job_and_no_other(cluster: ApiServer, agent: tuple[str, str]) -> None:
    permit(cluster, *agent)
    victim, tenant = cluster.namespace(), cluster.namespace()
    for namespace in (victim, tenant):
        account(cluster, namespace, "digits-trainer")
    job = JobIdentity(victim, "digits", "uid-1")
    proofs = Proofs(reviewer())
    try:
        good = cluster.token(victim, "digits-trainer", job.audience)
        assert answer(proofs, good, job.key) == (200, "")
        assert answer(proofs, good, f"{victim}/other")[0] == 403
        stolen = cluster.token(tenant, "digits-trainer", job.audience)
        status, message = answer(proofs, stolen, job.key)
        assert (status, f"system:serviceaccount:{tenant}:digits-trainer" in message) == (403, True)
        assert answer(proofs, cluster.token(victim, "digits-trainer"), job.key)[0] == 401
        both = cluster.token(victim, "digits-trainer", job.audience, "https://kubernetes.default.svc")
        assert answer(proofs, both, job.key)[0] == 401
        head, payload, signature = good.split(".")
        forged = f"{head}.{payload}.{signature[::-1]}"
        assert "API server does not accept the token" in answer(proofs, forged, job.key)[1]
    finally:
        proofs.close()


def test_an_agent_without_the_right_says_which_it_needs(cluster: ApiServer, agent: tuple[str, str]) -> None:
    namespace, _ = agent
    account(cluster, namespace, "digits-trainer")
    job = JobIdentity(namespace, "digits", "uid-1")
    proofs = Proofs(reviewer())
    status, message = answer(proofs, cluster.token(namespace, "digits-trainer", job.audience), job.key)
    assert status == 503
    assert "`create` of tokenreviews.authentication.k8s.io" in message
    proofs.close()


def test_an_api_server_that_is_away_is_waited_for_but_briefly(cluster: ApiServer, agent: tuple[str, str]) -> None:
    namespace, _ = agent
    account(cluster, namespace, "digits-trainer")
    job = JobIdentity(namespace, "digits", "uid-1")
    token = cluster.token(namespace, "digits-trainer", job.audience)
    proofs = Proofs(reviewer())
    cluster.stop()
    status, message = answer(proofs, token, job.key)
    assert (status, "could not be checked" in message) == (503, True)
    proofs.close()
