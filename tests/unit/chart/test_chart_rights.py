"""Who may what: what the operator has is split into what is for the cluster and the rest."""

from __future__ import annotations

import json

import pytest
from charts import SYSTEM, Helm, bound_rights, of, one, rights

from espalier_operator.kube.objects import manifests as objects
from operator_world.kube_devices import RESOURCE
from operator_world.kube_objects import kube_job

REVIEW = ("authentication.k8s.io", "tokenreviews", "create")
READ_EVERYWHERE = {
    ("", "nodes", "list"),
    ("", "nodes", "watch"),
    ("", "pods", "get"),
    ("", "pods", "list"),
    ("", "pods", "watch"),
    ("scheduling.k8s.io", "priorityclasses", "list"),
    ("scheduling.k8s.io", "priorityclasses", "watch"),
    ("espalier.dev", "queues", "list"),
    ("espalier.dev", "queues", "watch"),
    ("", "persistentvolumes", "list"),
    ("", "persistentvolumes", "watch"),
}
QUEUE_STATUS = ("espalier.dev", "queues/status", "patch")
"""What is written of an object that is in no namespace."""


def test_in_chosen_namespaces_only_reads_are_for_the_cluster(helm: Helm) -> None:
    everywhere, chosen = bound_rights(helm.render()), bound_rights(helm.render("namespaced"))
    assert chosen.keys() == {None, SYSTEM, "team-a", "team-b"}
    assert set(chosen[None]) == {*READ_EVERYWHERE, REVIEW, QUEUE_STATUS}
    assert sorted(chosen["team-a"]) == sorted(chosen["team-b"])
    assert sorted([*chosen["team-a"], *chosen[None]]) == sorted(everywhere[None]), "nothing less, nothing more"
    assert chosen[SYSTEM] == everywhere[SYSTEM]


def test_devices_are_read_only_where_the_values_name_a_class(helm: Helm) -> None:
    kinds = ("deviceclasses", "resourceslices", "resourceclaimtemplates", "resourceclaims")
    devices = {("resource.k8s.io", kind, verb) for kind in kinds for verb in ("list", "watch")}
    for files in ((), ("namespaced",)):
        plain, named = (
            set(bound_rights(helm.render(*files, sets={"operator.gpu.otherResources": json.dumps(others)}))[None])
            for others in (["amd.com/gpu"], ["amd.com/gpu", RESOURCE])
        )
        assert named - plain == devices


def test_logs_are_read_only_where_the_values_say_so(helm: Helm) -> None:
    plain, read = (set(bound_rights(helm.render(sets=sets))[None]) for sets in ({}, {"rbac.podLogs": "true"}))
    assert read - plain == {("", "pods/log", "get")}
    assert plain <= read


def test_eviction_requests_are_read_only_where_the_values_say_so(helm: Helm) -> None:
    sets = {"operator.evictionRequests": "true"}
    plain, read = (bound_rights(helm.render("namespaced", sets=given)) for given in ({}, sets))
    added = {("lifecycle.k8s.io", "evictionrequests", verb) for verb in ("list", "watch")}
    assert (set(read["team-a"]) - set(plain["team-a"]), read[None]) == (added, plain[None])


@pytest.mark.parametrize("boosts", [False, True])
def test_workloads_are_made_and_deleted_only_where_kueue_is_switched_on(helm: Helm, boosts: bool) -> None:
    """Their status is never written. Kueue's own account may read jobs."""
    sets = {"kueue.enabled": "true", "kueue.priorityBoost": str(boosts).lower()}
    plain, rendered = bound_rights(helm.render("namespaced")), helm.render("namespaced", sets=sets)
    beside = bound_rights(rendered)
    kinds = ("workloads", "resourceflavors")
    read = {("kueue.x-k8s.io", kind, verb) for kind in kinds for verb in ("list", "watch")}
    jobs = {("espalier.dev", "adaptivetrainingjobs", verb) for verb in ("get", "list", "watch")}
    assert set(beside[None]) - set(plain[None]) - jobs == read
    verbs = ("create", "delete", "patch") if boosts else ("create", "delete")
    written = {("kueue.x-k8s.io", "workloads", verb) for verb in verbs}
    assert set(beside["team-a"]) - set(plain["team-a"]) == written
    account = one(rendered, "ClusterRoleBinding", "espalier-kueue")["subjects"]
    assert account == [{"kind": "ServiceAccount", "name": "kueue-controller-manager", "namespace": "kueue-system"}]
    (operator,) = (each for each in of(rendered, "Deployment") if each["metadata"]["name"].endswith("-operator"))
    given = operator["spec"]["template"]["spec"]["containers"][0]["args"]
    assert [each for each in given if "kueue" in each] == ["--kueue", *["--kueue-priority-boost"] * boosts]


def test_the_releases_namespace_may_be_looked_after_too(helm: Helm) -> None:
    rendered = helm.render(sets={"watchNamespaces": f'["{SYSTEM}"]'})
    names = [each["metadata"]["name"] for each in of(rendered, "Role")]
    assert sorted(names) == ["espalier-operator", "espalier-operator-jobs"]


@pytest.mark.parametrize("files", [(), ("namespaced",), ("hostile",), ("full",)])
def test_the_operator_is_bound_and_the_agent_to_one_right(helm: Helm, files: tuple[str, ...]) -> None:
    rendered = helm.render(*files)
    operator = next(
        each["spec"]["template"]["spec"]["serviceAccountName"]
        for each in of(rendered, "Deployment")
        if each["metadata"]["name"].endswith("-operator")
    )
    agents = [each for each in of(rendered, "ClusterRoleBinding") if each["metadata"]["name"].endswith("-agent")]
    for binding in (*of(rendered, "RoleBinding"), *of(rendered, "ClusterRoleBinding")):
        if binding not in agents:
            assert binding["subjects"] == [{"kind": "ServiceAccount", "name": operator, "namespace": SYSTEM}]
    (agent,) = agents
    role = one(rendered, "ClusterRole", agent["roleRef"]["name"])
    assert rights(role["rules"]) == [REVIEW]
    (deployment,) = [each for each in of(rendered, "Deployment") if each["metadata"]["name"].endswith("-agent")]
    account = deployment["spec"]["template"]["spec"]["serviceAccountName"]
    assert agent["subjects"] == [{"kind": "ServiceAccount", "name": account, "namespace": SYSTEM}]


def test_an_agent_that_asks_for_no_proof_has_no_rights(helm: Helm) -> None:
    for sets in ({"agent.authentication": '"None"'}, {"agent.enabled": "false"}):
        rendered = helm.render(sets=sets)
        assert bound_rights(rendered)[None].count(REVIEW) == 1, "the operator's, to which programs post"
        assert not [each for each in of(rendered, "ClusterRole") if each["metadata"]["name"].endswith("-agent")]
    spec = one(helm.render(sets={"agent.authentication": '"None"'}), "Deployment", "espalier-agent")["spec"]["template"]
    assert spec["spec"]["automountServiceAccountToken"] is False
    assert "--authentication=None" in spec["spec"]["containers"][0]["args"]


def test_the_operator_has_what_it_grants_to_trainers_in_their_namespace(helm: Helm) -> None:
    granted = set(rights(objects.role(kube_job())["rules"]))
    assert granted
    for found in (bound_rights(helm.render())[None], bound_rights(helm.render("namespaced"))["team-a"]):
        assert granted <= set(found)


def test_who_edits_or_views_a_namespace_does_so_with_its_jobs(helm: Helm) -> None:
    rendered = helm.render()
    edit, view = (one(rendered, "ClusterRole", f"espalier-jobs-{role}") for role in ("edit", "view"))
    aggregated = "rbac.authorization.k8s.io/aggregate-to-"
    assert {key for key in edit["metadata"]["labels"] if key.startswith(aggregated)} == {
        f"{aggregated}edit",
        f"{aggregated}admin",
    }
    assert {key for key in view["metadata"]["labels"] if key.startswith(aggregated)} == {f"{aggregated}view"}
    assert {verb for _, _, verb in rights(view["rules"])} == {"get", "list", "watch"}
    for role in (edit, view):
        parts = {f"adaptivetrainingjobs{part}" for part in ("", "/scale", "/status")}
        assert {resource for _, resource, _ in rights(role["rules"])} == parts


def test_without_rbac_there_are_no_roles(helm: Helm) -> None:
    rendered = helm.render(sets={"rbac": '{"create": false, "userRoles": false}'})
    assert not [each for each in rendered if each["apiVersion"].startswith("rbac.")]
