"""What the chart makes of several values files: namespaces, restricted pods, images, what is switched on and off."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from charts import CHART, KUBE_VERSION, ROOT, SYSTEM, VALUES, Helm, Raw, of, one, parse, pod_templates

from espalier_operator.kube.main import main
from espalier_operator.kube.options import settings_of
from espalier_operator.kube.settings import KubeSettings

CASES: dict[str, tuple[str, ...]] = {
    "default": (),
    **{file.stem: (file.stem,) for file in sorted(VALUES.glob("*.yaml"))},
    "full and namespaced": ("full", "namespaced"),
}
UNBOUND = {"ClusterRole", "ClusterRoleBinding", "PriorityClass", "CustomResourceDefinition"}
DASHBOARDS = sorted(path.stem for path in (CHART / "dashboards").glob("*.json"))
RULES = sorted(path.stem for path in (CHART / "rules").glob("*.yaml"))


@pytest.fixture(params=CASES, scope="module")
def objects(request: pytest.FixtureRequest, helm: Helm) -> list[Raw]:
    """Give what each values file makes."""
    return helm.render(*CASES[request.param])


def names(objects: list[Raw], *, without: tuple[str, ...] = ()) -> set[tuple[str, str]]:
    return {(each["kind"], each["metadata"]["name"]) for each in objects if each["kind"] not in without}


def texts(value: Any) -> list[Any]:
    """Return all that stands in a value but maps and lists."""
    if isinstance(value, dict):
        return [text for key, inner in value.items() for text in (key, *texts(inner))]
    if isinstance(value, list):
        return [text for inner in value for text in texts(inner)]
    return [value]


@pytest.mark.parametrize("files", CASES.values(), ids=CASES)
def test_helm_finds_nothing_wrong(helm: Helm, files: tuple[str, ...]) -> None:
    options = [f"--values={VALUES / file}.yaml" for file in files]
    said = helm("lint", "--strict", str(CHART), f"--kube-version={KUBE_VERSION}", *options)
    assert "1 chart(s) linted, 0 chart(s) failed" in said


def test_every_object_is_where_it_belongs(objects: list[Raw]) -> None:
    for each in objects:
        namespace = each["metadata"].get("namespace")
        if each["kind"] in UNBOUND:
            assert namespace is None, each["metadata"]
        else:
            assert isinstance(namespace, str), each["metadata"]
            assert namespace, each["metadata"]


def test_only_roles_for_jobs_and_dashboards_leave_the_releases_namespace(objects: list[Raw]) -> None:
    elsewhere = {
        each["kind"] for each in objects if each["metadata"].get("namespace", SYSTEM) != SYSTEM and each["kind"]
    }
    assert elsewhere <= {"Role", "RoleBinding", "ConfigMap"}


def test_nothing_is_there_twice(objects: list[Raw]) -> None:
    keys = [(each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]) for each in objects]
    assert len(keys) == len(set(keys))


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
        assert spec["automountServiceAccountToken"] is name.endswith("-operator"), "only the operator talks to the API"
        for volume in spec.get("volumes", ()):
            assert set(volume) <= {"name", "emptyDir", "configMap", "persistentVolumeClaim"}
        for container in (*spec.get("initContainers", ()), *spec["containers"]):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert container["resources"]["requests"].keys() >= {"cpu", "memory"}
            assert "memory" in container["resources"]["limits"]


def test_no_wildcards_no_secrets_nothing_that_leads_to_more_rights(objects: list[Raw]) -> None:
    assert not of(objects, "Secret")
    roles = [*of(objects, "Role"), *of(objects, "ClusterRole")]
    assert roles
    for role in roles:
        for rule in role["rules"]:
            words = {*rule["apiGroups"], *rule["resources"], *rule["verbs"]}
            assert not [word for word in words if "*" in word], rule
            assert not {"secrets", "pods/exec", "pods/attach", "nodes/proxy", "escalate", "bind", "impersonate"} & words


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
        elif each["kind"] == "NetworkPolicy":
            assert found(each["spec"]["podSelector"]["matchLabels"]) == [name]
            ports = {port["name"] for port in pods[name]["spec"]["containers"][0]["ports"]}
            assert {port["port"] for rule in each["spec"]["ingress"] for port in rule["ports"]} <= ports


def test_probes_ask_ports_of_their_containers(objects: list[Raw]) -> None:
    for each in of(objects, "Deployment"):
        (container,) = each["spec"]["template"]["spec"]["containers"]
        for probe in ("startupProbe", "livenessProbe"):
            assert container[probe]["httpGet"]["path"] == "/healthz"
            assert container[probe]["httpGet"]["port"] in {port["name"] for port in container["ports"]}


def test_the_default_makes_what_deploy_has_and_what_only_a_chart_can(helm: Helm) -> None:
    rendered = helm.render()
    ours = names(rendered)
    deployed = {
        (each["kind"], each["metadata"]["name"])
        for file in sorted((ROOT / "deploy").glob("*.yaml"))
        for each in parse(file.read_text())
        if each["kind"] != "Namespace"
    }
    assert deployed <= ours, "under the same names"
    assert ours - deployed == {
        ("ClusterRole", "espalier-operator-jobs"),
        ("ClusterRoleBinding", "espalier-operator-jobs"),
        ("ClusterRole", "espalier-jobs-edit"),
        ("ClusterRole", "espalier-jobs-view"),
        ("CustomResourceDefinition", "adaptivetrainingjobs.espalier.dev"),
        ("NetworkPolicy", "espalier-operator"),
        ("NetworkPolicy", "espalier-agent"),
        ("Service", "espalier-operator"),
        ("Pod", "espalier-test"),
    }


@pytest.mark.parametrize("part", ["operator", "agent"])
def test_pods_are_those_of_deploy(helm: Helm, part: str) -> None:
    """Apart from what each has for its own: labels, options written out, the spreading of agents."""
    found = one(helm.render(), "Deployment", f"espalier-{part}")["spec"]
    files = [parse(file.read_text()) for file in sorted((ROOT / "deploy").glob("*.yaml"))]
    there = one([each for file in files for each in file], "Deployment", f"espalier-{part}")["spec"]
    assert found["replicas"] == there["replicas"]
    assert found.get("strategy") == there.get("strategy")
    ours, theirs = (dict(each["template"]["spec"]) for each in (found, there))
    ours.pop("topologySpreadConstraints", None)
    assert ours.pop("automountServiceAccountToken") is theirs.pop("automountServiceAccountToken", True)
    (mine,), (yours,) = ours.pop("containers"), theirs.pop("containers")
    assert ours == theirs
    mine.pop("args"), yours.pop("args")
    assert mine == yours


def test_the_operator_gets_its_own_defaults(helm: Helm) -> None:
    (container,) = one(helm.render(), "Deployment", "espalier-operator")["spec"]["template"]["spec"]["containers"]
    context = main.make_context("espalier-operator", list(container["args"]))
    assert settings_of(context.params) == KubeSettings(
        trainer_image="localhost/espalier-trainer:dev", agent_url="http://espalier-agent.espalier-system.svc:8080"
    )
    assert {key: context.params[key] for key in ("lease", "lease_seconds", "log_level", "log_format")} == {
        "lease": True,
        "lease_seconds": 15,
        "log_level": "info",
        "log_format": "text",
    }
    assert context.params["http"].port == container["ports"][0]["containerPort"]


def test_the_operator_is_told_every_setting(helm: Helm) -> None:
    pod = one(helm.render("full", "namespaced"), "Deployment", "gpus-operator")["spec"]["template"]["spec"]
    context = main.make_context("espalier-operator", list(pod["containers"][0]["args"]))
    assert settings_of(context.params) == KubeSettings(
        gpu_resource="amd.com/gpu",
        gpu_type_label="example.com/model",
        tolerated_taints=("amd.com/gpu", "example.com/reserved"),
        trainer_image="registry.example.com:5000/espalier/trainers/espalier:cuda-0.1.0",
        image_pull_policy="IfNotPresent",
        agent_url="http://gpus-agent.espalier-system.svc:8080",
        extra_priority_class="gpus-extra",
        watch_namespaces=("team-a", "team-b"),
        grace_seconds=0,
        start_up_allowance_seconds=60.5,
        promise_seconds=61,
        pre_running_deadline_seconds=1_000_000,
        restart_seconds=2,
        max_restart_seconds=62,
        persist_seconds=4,
        resync_seconds=600,
    )
    assert (context.params["lease_seconds"], context.params["log_level"], context.params["log_format"]) == (
        20,
        "debug",
        "json",
    )


def test_images_are_as_they_are_given(helm: Helm) -> None:
    rendered = helm.render("full")
    pods = {name: pod["spec"] for name, pod in pod_templates(rendered)}
    operator = f"registry.example.com:5000/espalier/espalier-operator@sha256:{'0123456789abcdef' * 4}"
    assert pods["gpus-operator"]["containers"][0]["image"] == operator
    assert pods["gpus-test"]["containers"][0]["image"] == operator
    agent = pods["gpus-agent"]
    assert agent["containers"][0]["image"] == "registry.example.com:5000/espalier/espalier-agent:0.1.0"
    assert agent["initContainers"][0]["image"] == "registry.example.com/policies:7"
    for pod in pods.values():
        assert pod["imagePullSecrets"] == [{"name": "registry"}]
        for container in (*pod.get("initContainers", ()), *pod["containers"]):
            assert container["imagePullPolicy"] == "Always"


def test_an_empty_tag_is_the_version(helm: Helm) -> None:
    pods = dict(pod_templates(helm.render(sets={"image": '{"tag": "", "registry": ""}'})))
    assert pods["espalier-agent"]["spec"]["containers"][0]["image"] == "espalier-agent:0.1.0"


POLICIES = {
    "ConfigMap": ({"configMap": "mine"}, {"configMap": {"name": "mine"}}),
    "PersistentVolumeClaim": ({"claim": "c"}, {"persistentVolumeClaim": {"claimName": "c", "readOnly": True}}),
    "Image": ({"image": "policies:1"}, {"emptyDir": {"sizeLimit": "256Mi"}}),
}


@pytest.mark.parametrize("source", POLICIES)
def test_a_policy_from_elsewhere_is_mounted_where_the_agent_looks(helm: Helm, source: str) -> None:
    given, volume = POLICIES[source]
    rendered = helm.render(sets={"agent.policy": json.dumps({"source": source, **given})})
    spec = one(rendered, "Deployment", "espalier-agent")["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert "--policy=/policy" in container["args"]
    assert {"name": "policy", "mountPath": "/policy", "readOnly": True} in container["volumeMounts"]
    assert {"name": "policy", **volume} in spec["volumes"]
    copies = [each["command"] for each in spec.get("initContainers", ())]
    assert copies == ([["cp", "-R", "/policy/.", "/policy/"]] if source == "Image" else [])


def test_the_folder_of_a_claim_and_of_an_image(helm: Helm) -> None:
    hostile = one(helm.render("hostile"), "Deployment", "espalier-agent")["spec"]["template"]["spec"]
    assert {"name": "policy", "mountPath": "/policy", "readOnly": True, "subPath": "7"} in (
        hostile["containers"][0]["volumeMounts"]
    )
    full = one(helm.render("full"), "Deployment", "gpus-agent")["spec"]["template"]["spec"]
    assert full["initContainers"][0]["command"] == ["cp", "-R", "/policies/seven/.", "/policy/"]


def test_hostile_values_stay_what_they_are(helm: Helm) -> None:
    rendered = helm.render("hostile")
    pods = dict(pod_templates(rendered))
    operator = pods["espalier-operator"]
    assert operator["spec"]["serviceAccountName"] == "on"
    assert operator["spec"]["priorityClassName"] == "false"
    assert operator["spec"]["containers"][0]["image"] == "localhost/espalier-operator:007"
    assert operator["metadata"]["annotations"] == {"example.com/text": '{{ fail "no" }}: #\t\\'}
    assert operator["metadata"]["labels"]["app.kubernetes.io/name"] == "espalier-operator", "selectors still find it"
    assert operator["metadata"]["labels"]["yes"] == "null"
    account = one(rendered, "ServiceAccount", "on")
    assert account["metadata"]["annotations"] == {"example.com/text": "{{ .Values }}\n- 'a': \"b\""}
    assert {each["metadata"]["namespace"] for each in of(rendered, "Role")} == {SYSTEM, "123", "true", "1e3"}
    args = operator["spec"]["containers"][0]["args"]
    assert [each for each in args if each.startswith("--watch")] == [
        f"--watch-namespaces={name}" for name in ("123", "true", "1e3")
    ]
    assert not of(rendered, "ConfigMap") or all(
        each["metadata"]["namespace"] == "99" and "grafana_dashboard" not in each["metadata"]["labels"]
        for each in of(rendered, "ConfigMap")
    )


def test_a_release_of_another_name_shares_nothing_with_the_first_but_what_there_can_be_only_one_of(helm: Helm) -> None:
    one_release, other = helm.render(), helm.render(release="second", namespace="second")
    shared = names(one_release) & names(other)
    assert shared == {
        ("CustomResourceDefinition", "adaptivetrainingjobs.espalier.dev"),
        ("PriorityClass", "espalier-extra"),
    }
    assert ("Deployment", "second-espalier-operator") in names(other)


def test_switched_off_is_not_there(helm: Helm) -> None:
    rendered = helm.render("minimal")
    assert {each["kind"] for each in rendered} == {
        *("ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"),
        *("Deployment", "Pod", "Service", "ServiceAccount"),
    }
    assert not [name for _, name in names(rendered) if "agent" in name]
    (container,) = one(rendered, "Deployment")["spec"]["template"]["spec"]["containers"]
    settings = settings_of(main.make_context("espalier-operator", list(container["args"])).params)
    assert (settings.agent_url, settings.extra_priority_class) == (None, None)


def test_an_agent_elsewhere(helm: Helm) -> None:
    rendered = helm.render("minimal", sets={"agent.url": '"https://agent.example.com"'})
    (container,) = one(rendered, "Deployment")["spec"]["template"]["spec"]["containers"]
    assert "--agent-url=https://agent.example.com" in container["args"]


@pytest.mark.parametrize(
    ("values", "replicas", "protected"),
    [
        ({"agent.replicas": "1"}, 1, False),
        ({"agent.replicas": "2"}, 2, True),
        ({"agent.autoscaling": '{"enabled": true, "minReplicas": 1}'}, None, False),
        ({"agent.autoscaling": '{"enabled": true, "minReplicas": 2}', "agent.replicas": "1"}, None, True),
    ],
)
def test_several_agents_are_not_all_taken_at_once(
    helm: Helm, values: dict[str, str], replicas: int | None, protected: bool
) -> None:
    rendered = helm.render(sets=values)
    assert one(rendered, "Deployment", "espalier-agent")["spec"].get("replicas") == replicas
    assert bool(of(rendered, "PodDisruptionBudget")) is protected
    assert bool(of(rendered, "HorizontalPodAutoscaler")) is (replicas is None)


def test_workers_reach_the_agent_and_prometheus_both(helm: Helm) -> None:
    prometheus = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    test = {
        "podSelector": {
            "matchLabels": {"app.kubernetes.io/name": "espalier-test", "app.kubernetes.io/instance": "espalier"}
        }
    }
    worker = {
        "namespaceSelector": {},
        "podSelector": {"matchExpressions": [{"key": "espalier.dev/job", "operator": "Exists"}]},
    }
    rendered = helm.render()
    agent, operator = (one(rendered, "NetworkPolicy", f"espalier-{part}")["spec"] for part in ("agent", "operator"))
    assert [rule["from"] for rule in agent["ingress"]] == [[worker], [test], [prometheus]]
    assert [rule["from"] for rule in operator["ingress"]] == [[test], [prometheus]]
    assert agent["policyTypes"] == operator["policyTypes"] == ["Ingress"], "where they go is not restricted"
    (pod,) = of(rendered, "Pod")
    assert test["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()


def test_only_workers_of_the_namespaces_looked_after_reach_the_agent(helm: Helm) -> None:
    agent = one(helm.render("namespaced"), "NetworkPolicy", "espalier-agent")["spec"]
    assert agent["ingress"][0]["from"][0]["namespaceSelector"] == {
        "matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["team-a", "team-b"]}]
    }


def test_nobody_scrapes_where_nobody_may(helm: Helm) -> None:
    rendered = helm.render(sets={"networkPolicy.metricsFrom": "[]"})
    assert len(one(rendered, "NetworkPolicy", "espalier-operator")["spec"]["ingress"]) == 1


def test_monitors_find_services_and_ports(helm: Helm) -> None:
    rendered = helm.render("full", "namespaced")
    monitors = of(rendered, "ServiceMonitor")
    assert {each["metadata"]["name"] for each in monitors} == {"gpus-operator", "gpus-agent"}
    for monitor in monitors:
        selector = monitor["spec"]["selector"]["matchLabels"]
        (service,) = [
            each for each in of(rendered, "Service") if selector.items() <= each["metadata"]["labels"].items()
        ]
        (endpoint,) = monitor["spec"]["endpoints"]
        assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
        assert (endpoint["path"], endpoint["interval"], endpoint["honorLabels"]) == ("/metrics", "30s", True)
        assert monitor["metadata"]["labels"]["release"] == "prometheus"
        assert monitor["spec"]["namespaceSelector"] == {"matchNames": [SYSTEM]}
    trainers = one(rendered, "PodMonitor")["spec"]
    assert trainers["namespaceSelector"] == {"matchNames": ["team-a", "team-b"]}
    assert trainers["selector"] == {"matchLabels": {"app.kubernetes.io/managed-by": "espalier"}}
    assert trainers["podMetricsEndpoints"][0]["port"] == "metrics"
    assert one(helm.render("full"), "PodMonitor")["spec"]["namespaceSelector"] == {"any": True}


def test_rules_and_dashboards_are_the_files(helm: Helm) -> None:
    rendered = helm.render("full")
    rules = {each["metadata"]["name"]: each for each in of(rendered, "PrometheusRule")}
    assert sorted(rules) == [f"gpus-{name}" for name in RULES]
    for name in RULES:
        (source,) = parse((CHART / "rules" / f"{name}.yaml").read_text())
        assert rules[f"gpus-{name}"]["spec"] == source
        assert rules[f"gpus-{name}"]["metadata"]["labels"]["release"] == "prometheus"
    boards = {each["metadata"]["name"]: each for each in of(rendered, "ConfigMap")}
    assert sorted(boards) == [f"gpus-dashboard-{name}" for name in DASHBOARDS]
    for name in DASHBOARDS:
        board = boards[f"gpus-dashboard-{name}"]
        text = (CHART / "dashboards" / f"{name}.json").read_text()
        assert board["metadata"]["namespace"] == "monitoring"
        assert board["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert json.loads(board["data"][f"{name}.json"]) == json.loads(text)


def test_the_definition_is_that_of_the_project_number_by_number(helm: Helm) -> None:
    rendered = one(helm.render(), "CustomResourceDefinition")
    (source,) = parse((ROOT / "crds" / "adaptivetrainingjobs.espalier.dev.yaml").read_text())
    assert rendered["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert rendered["spec"] == source["spec"]
    assert not one(helm.render("full"), "CustomResourceDefinition")["metadata"].get("annotations")


def test_the_platform_may_choose_the_user(helm: Helm) -> None:
    for _, pod in pod_templates(helm.render(sets={"securityContext.runAsUser": "null"})):
        assert pod["spec"]["securityContext"] == {
            "runAsNonRoot": True,
            "seccompProfile": {"type": "RuntimeDefault"},
        }
