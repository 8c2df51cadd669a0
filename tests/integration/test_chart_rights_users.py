"""The roles that the chart makes for users: who may edit or view a namespace, and its jobs, as Kubernetes has it."""

from __future__ import annotations

from apiserver import ApiServer
from charts import rights
from releases import Release

RBAC = "/apis/rbac.authorization.k8s.io/v1"


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
