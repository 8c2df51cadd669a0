"""What holds of all that the chart makes, whatever the values: namespaces, names, restricted pods, selectors."""

from __future__ import annotations

import re

import pytest
from charts import CASES, CHART, KUBE_VERSION, SYSTEM, VALUES, Helm, Raw, of, pod_templates

UNBOUND = {
    *("ClusterRole", "ClusterRoleBinding", "PriorityClass", "CustomResourceDefinition"),
    *("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"),
}


@pytest.fixture(params=CASES, scope="module")
def objects(request: pytest.FixtureRequest, helm: Helm) -> list[Raw]:
    """Give what each values file makes."""
    return helm.render(*CASES[request.param])


@pytest.mark.parametrize("files", CASES.values(), ids=CASES)
def test_helm_finds_nothing_wrong(helm: Helm, files: tuple[str, ...]) -> None:
    options = [f"--values={VALUES / file}.yaml" for file in files]
    said = helm("lint", "--strict", str(CHART), f"--kube-version={KUBE_VERSION}", *options)
    assert "1 chart(s) linted, 0 chart(s) failed" in said


def test_every_object_is_where_it_belongs_and_none_is_there_twice(objects: list[Raw]) -> None:
    """Only roles for jobs, policies and dashboards leave the namespace of the release."""
    keys = [(each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]) for each in objects]
    assert len(keys) == len(set(keys))
    for kind, namespace, name in keys:
        if kind in UNBOUND:
            assert namespace is None, name
        else:
            assert isinstance(namespace, str), name
            assert namespace, name
    elsewhere = {kind for kind, namespace, _ in keys if namespace not in (None, SYSTEM)}
    assert elsewhere <= {"Role", "RoleBinding", "ConfigMap", "NetworkPolicy"}


def test_names_and_labels_are_texts_that_kubernetes_takes(objects: list[Raw]) -> None:
    for each in objects:
        metadata = each["metadata"]
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", metadata["name"]), metadata["name"]
        for key, value in metadata["labels"].items():
            assert isinstance(key, str), key
            assert isinstance(value, str), (key, value)
        assert metadata["labels"]["app.kubernetes.io/instance"] == "espalier"
        assert metadata["labels"]["app.kubernetes.io/part-of"] == "espalier"
        assert all(isinstance(value, str) for value in metadata.get("annotations", {}).values())


def test_pods_are_restricted(objects: list[Raw]) -> None:
    pods = dict(pod_templates(objects))
    assert len(pods) >= 2
    for name, pod in pods.items():
        spec = pod["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] == spec["securityContext"]["runAsGroup"] == 65532
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
        arguments = set(spec["containers"][0].get("args", ()))
        reviews = bool(arguments & {"--authentication=TokenReview", "--metrics-authentication=TokenReview"})
        assert spec["automountServiceAccountToken"] is (name.endswith("-operator") or reviews), "no one else needs one"
        for volume in spec.get("volumes", ()):
            assert set(volume) <= {"name", "emptyDir", "configMap", "persistentVolumeClaim", "secret"}
        for container in (*spec.get("initContainers", ()), *spec["containers"]):
            restricted = {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert container["securityContext"].items() >= restricted.items()
            assert container["resources"]["requests"].keys() >= {"cpu", "memory"}
            assert "memory" in container["resources"]["limits"]


def test_no_wildcards_no_secret_is_read_nothing_that_leads_to_more_rights(objects: list[Raw]) -> None:
    assert not of(objects, "Secret")
    roles = [*of(objects, "Role"), *of(objects, "ClusterRole")]
    assert roles
    for role in roles:
        for rule in role["rules"]:
            words = {*rule["apiGroups"], *rule["resources"], *rule["verbs"]}
            assert not [word for word in words if "*" in word], rule
            assert "secrets" not in words or rule["verbs"] == ["create"], rule
            assert not {"pods/exec", "pods/attach", "nodes/proxy", "escalate", "bind", "impersonate"} & words


def test_selectors_find_their_pods_and_no_others(objects: list[Raw]) -> None:
    pods = dict(pod_templates(objects))

    def found(selector: Raw) -> list[str]:
        return [name for name, pod in pods.items() if selector.items() <= pod["metadata"]["labels"].items()]

    for each in objects:
        name = each["metadata"]["name"]
        if each["kind"] == "Deployment":
            assert found(each["spec"]["selector"]["matchLabels"]) == [name]
        elif each["kind"] == "Service":
            assert found(each["spec"]["selector"]) == [name]
            ports = {port["name"] for port in pods[name]["spec"]["containers"][0]["ports"]}
            assert {port["targetPort"] for port in each["spec"]["ports"]} <= ports
        elif each["kind"] == "PodDisruptionBudget":
            assert found(each["spec"]["selector"]["matchLabels"]) == [name]
        elif each["kind"] == "NetworkPolicy" and not name.endswith("-workers"):
            assert found(each["spec"]["podSelector"]["matchLabels"]) == [name]
            ports = {port["name"] for port in pods[name]["spec"]["containers"][0]["ports"]}
            assert {port["port"] for rule in each["spec"]["ingress"] for port in rule["ports"]} <= ports


def test_probes_ask_ports_of_their_containers(objects: list[Raw]) -> None:
    for each in of(objects, "Deployment"):
        container, *_ = each["spec"]["template"]["spec"]["containers"]
        for probe in ("startupProbe", "livenessProbe"):
            assert container[probe]["httpGet"]["path"] == "/healthz"
            assert container[probe]["httpGet"]["port"] in {port["name"] for port in container["ports"]}
        assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
