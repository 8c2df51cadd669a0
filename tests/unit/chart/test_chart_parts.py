"""What single values do: the default, the operator's options, images, policies, what is off."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import charts
import pytest
from charts import CHART, IMAGES, ROOT, SYSTEM, VERSION, Helm, Raw, of, one, parse, pod_of, pod_templates, rights

from espalier_agent.commands.serve import serve
from espalier_lab.scheduling.product.__main__ import arguments
from espalier_operator.kube.process.main import main
from espalier_operator.kube.settings import KubeSettings, settings_of
from espalier_operator.policies.settings import configured


def names(objects: list[Raw], *, without: tuple[str, ...] = ()) -> set[tuple[str, str]]:
    return {(each["kind"], each["metadata"]["name"]) for each in objects if each["kind"] not in without}


def test_the_operator_gets_its_own_defaults(helm: Helm) -> None:
    (container,) = pod_of(helm.render(), "espalier-operator")["containers"]
    context = main.make_context("espalier-operator", list(container["args"]))
    assert settings_of(context.params) == KubeSettings(
        trainer_image=f"{IMAGES}/espalier-trainer:{VERSION}",
        agent_url="http://espalier-agent.espalier-system.svc:8080",
        progress_url="http://espalier-operator.espalier-system.svc:8082",
        worker_network_policies=True,
    )
    assert {key: context.params[key] for key in ("lease", "lease_seconds", "log_level", "log_format")} == {
        "lease": True,
        "lease_seconds": 15,
        "log_level": "info",
        "log_format": "text",
    }
    assert context.params["http"].port == container["ports"][0]["containerPort"]


def test_the_operator_gets_every_setting(helm: Helm) -> None:
    pod = pod_of(helm.render("full", "namespaced"), "gpus-operator")
    arguments = list(pod["containers"][0]["args"])
    # The image that has this policy is a user's own.
    arguments[arguments.index("--policy=theirs:lend=false,promote=8,thresholds=3600/7200")] = "--policy=fair"
    context = main.make_context("espalier-operator", arguments)
    assert settings_of(context.params) == KubeSettings(
        controller_name="example.com/second",
        eviction_requests=True,
        gpu_resource="amd.com/gpu",
        other_gpu_resources=("nvidia.com/gpu", "nvidia.com/mig-1g.5gb"),
        departing_nodes=("example.com/leaving", "example.com/state=going", "Leaving"),
        node_groups=(
            '{"gpuType":"A100","gpus":8,"labels":{"pool":"a100"},"maxNodes":4,"name":"a100",'
            '"taints":[{"effect":"NoSchedule","key":"spot"}]}',
        ),
        gpu_type_label="example.com/model",
        rack_label="example.com/rack",
        tolerated_taints=("amd.com/gpu", "example.com/reserved"),
        trainer_image="registry.example.com:5000/espalier/trainers/espalier:cuda-0.1.0",
        image_pull_policy="IfNotPresent",
        image_pull_secrets=("trainers", "more"),
        agent_url="http://gpus-agent.espalier-system.svc:8080",
        progress_url="http://gpus-operator.espalier-system.svc:8082",
        extra_priority_class="gpus-extra",
        traces_endpoint="http://collector.monitoring:4318/v1/traces",
        worker_network_policies=True,
        watch_namespaces=("team-a", "team-b"),
        grace_seconds=0,
        start_up_allowance_seconds=60.5,
        promise_seconds=61,
        node_wait_seconds=600,
        fair_share_half_life_seconds=3600,
        aging_seconds=600,
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
    assert (context.params["audit_dir"], context.params["audit_mib"]) == (Path("/audit"), 512)
    (volume,) = (volume for volume in pod["volumes"] if volume["name"] == "audit")
    assert volume["persistentVolumeClaim"] == {"claimName": "decisions"}
    assert {"name": "audit", "mountPath": "/audit"} in pod["containers"][0]["volumeMounts"]


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
    assert pods["espalier-agent"]["spec"]["containers"][0]["image"] == f"espalier-agent:{VERSION}"


POLICIES = {
    "ConfigMap": ({"configMap": "mine"}, {"configMap": {"name": "mine"}}),
    "PersistentVolumeClaim": ({"claim": "c"}, {"persistentVolumeClaim": {"claimName": "c", "readOnly": True}}),
    "Image": ({"image": "policies:1"}, {"emptyDir": {"sizeLimit": "256Mi"}}),
}


@pytest.mark.parametrize("source", POLICIES)
def test_a_policy_from_elsewhere_is_mounted_where_the_agent_looks(helm: Helm, source: str) -> None:
    given, volume = POLICIES[source]
    spec = pod_of(helm.render(sets={"agent.policy": json.dumps({"source": source, **given})}), "espalier-agent")
    (container,) = spec["containers"]
    assert "--policy=/policy" in container["args"]
    assert {"name": "policy", "mountPath": "/policy", "readOnly": True} in container["volumeMounts"]
    assert {"name": "policy", **volume} in spec["volumes"]
    copies = [each["command"] for each in spec.get("initContainers", ())]
    assert copies == ([["cp", "-R", "/policy/.", "/var/run/espalier-policy/"]] if source == "Image" else [])


@pytest.mark.parametrize(
    ("values", "volume"),
    [
        ("scaled", {"configMap": {"name": "espalier-scheduling"}}),
        ("shared", {"persistentVolumeClaim": {"claimName": "policies", "readOnly": True}}),
    ],
)
def test_a_policy_file_is_evaluated_beside_the_operator(helm: Helm, values: str, volume: Raw) -> None:
    objects = helm.render(values)
    (deployment,) = [each for each in of(objects, "Deployment") if each["metadata"]["name"].endswith("-operator")]
    pod = deployment["spec"]["template"]["spec"]
    operator, server = pod["containers"]
    assert [each for each in pod["volumes"] if each["name"] == "policy"] == [{"name": "policy", **volume}]
    given = arguments(server["args"])
    mounts = {each["name"]: each["mountPath"] for each in server["volumeMounts"]}
    assert given.file.is_relative_to(mounts["policy"])
    assert "policy" not in {each["name"] for each in operator["volumeMounts"]}
    # Where the operator asks is where the server listens, which nobody else reaches.
    (policy,) = [each.removeprefix("--policy=") for each in operator["args"] if each.startswith("--policy=")]
    assert configured(policy).url == f"http://{given.host}:{given.port}"
    assert given.host == "127.0.0.1"
    # The operator's token is not for it.
    assert mounts["no-token"] == "/var/run/secrets/kubernetes.io/serviceaccount"
    assert server["image"].rpartition("/")[2].startswith("espalier-agent:")


def test_the_folder_of_a_claim_and_of_an_image(helm: Helm) -> None:
    (container,) = pod_of(helm.render("hostile"), "espalier-agent")["containers"]
    mount = {"name": "policy", "mountPath": "/policy", "readOnly": True, "subPath": "7"}
    assert mount in container["volumeMounts"]
    (copies,) = pod_of(helm.render("full"), "gpus-agent")["initContainers"]
    assert copies["command"] == ["cp", "-R", "/policies/seven/.", "/var/run/espalier-policy/"]


@pytest.mark.parametrize(
    ("claim", "volume"),
    [("", {"emptyDir": {"sizeLimit": "356Mi"}}), ("kept", {"persistentVolumeClaim": {"claimName": "kept"}})],
)
def test_outcomes_are_kept_in_a_file_of_each_pod(helm: Helm, claim: str, volume: Raw) -> None:
    given = {"enabled": True, "claim": claim, "limitMiB": 100}
    spec = pod_of(helm.render(sets={"agent.outcomes": json.dumps(given)}), "espalier-agent")
    (container,) = spec["containers"]
    assert container["args"][-2:] == ["--outcomes-db=/outcomes/$(POD_NAME).db", "--outcomes-limit=100"]
    assert container["env"] == [{"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]
    assert {"name": "outcomes", "mountPath": "/outcomes"} in container["volumeMounts"]
    assert {"name": "outcomes", **volume} in spec["volumes"]
    parsed = serve.make_context("serve", container["args"][1:], resilient_parsing=False).params
    assert (parsed["outcomes_db"], parsed["outcomes_limit"]) == (Path("/outcomes/$(POD_NAME).db"), 100)


@pytest.mark.parametrize(("share", "given"), [("0", []), ("0.25", ["--explore=0.25"]), ("1", ["--explore=1"])])
def test_the_agent_explores_where_it_is_asked_to(helm: Helm, share: str, given: list[str]) -> None:
    arguments = pod_of(helm.render(sets={"agent.exploration": share}), "espalier-agent")["containers"][0]["args"]
    assert [each for each in arguments if each.startswith("--explore")] == given
    parsed = serve.make_context("serve", arguments[1:], resilient_parsing=False).params
    assert parsed["explore"] == float(share)


def test_outcomes_are_not_kept_unless_asked_for(helm: Helm) -> None:
    spec = pod_of(helm.render(), "espalier-agent")
    (container,) = spec["containers"]
    assert "env" not in container
    assert [each["name"] for each in (*spec["volumes"], *container["volumeMounts"])] == ["tmp", "tmp"]


def test_hostile_values_stay_what_they_are(helm: Helm) -> None:
    rendered = helm.render("hostile")
    pods = dict(pod_templates(rendered))
    operator = pods["espalier-operator"]
    assert operator["spec"]["serviceAccountName"] == "on"
    assert operator["spec"]["priorityClassName"] == "false"
    assert operator["spec"]["containers"][0]["image"] == f"{IMAGES}/espalier-operator:007"
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
    definitions = {("CustomResourceDefinition", f"{kind}.espalier.dev") for kind in ("adaptivetrainingjobs", "queues")}
    assert shared == {*definitions, ("PriorityClass", "espalier-extra")}
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


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ('{"seed": 10000000}', "gandiva:seed=10000000"),
        ('{"seed": 0}', "gandiva:seed=0"),
        ('{"thresholds": [1000000, 2000000.5], "lend": false}', "las:lend=false,thresholds=1000000/2.0000005e+06"),
        ('{"thresholds": [1e30], "promote": 0.5}', "las:promote=0.5,thresholds=1e+30"),
        ('{"url": "https://policy.ml.svc:8090/v1"}', "learned:url=https://policy.ml.svc:8090/v1"),
        ("{}", "fair"),
    ],
)
def test_settings_of_policies_are_written_as_the_operator_reads_them(settings: str, text: str, helm: Helm) -> None:
    """Helm reads numbers of JSON, as those of files of values, as if they had a fraction."""
    sets = {"policy.name": json.dumps(text.partition(":")[0]), "policy.settings": settings}
    (container,) = pod_of(helm.render(sets=sets), "espalier-operator")["containers"]
    assert f"--policy={text}" in container["args"]
    configured(text)


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


@pytest.mark.parametrize(("replicas", "protected"), [("1", False), ("2", True)])
def test_several_operators_are_not_all_taken_at_once(helm: Helm, replicas: str, protected: bool) -> None:
    rendered = helm.render(sets={"operator.replicas": replicas})
    assert [each["metadata"]["name"] for each in of(rendered, "PodDisruptionBudget")] == (
        ["espalier-operator"] if protected else []
    )


def test_pods_go_to_different_nodes_and_zones_unless_an_affinity_says_where(helm: Helm) -> None:
    for name, pod in pod_templates(helm.render()):
        if name != "espalier-test":
            spread = pod["spec"]["topologySpreadConstraints"]
            assert [each["topologyKey"] for each in spread] == ["kubernetes.io/hostname", "topology.kubernetes.io/zone"]
            for each in spread:
                assert each["whenUnsatisfiable"] == "ScheduleAnyway"
                assert each["labelSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    pods = dict(pod_templates(helm.render("full")))
    assert "topologySpreadConstraints" not in pods["gpus-operator"]["spec"]


@pytest.mark.parametrize("name", ["adaptivetrainingjobs.espalier.dev", "queues.espalier.dev"])
def test_the_definition_is_that_of_the_project_number_by_number(helm: Helm, name: str) -> None:
    rendered = one(helm.render(), "CustomResourceDefinition", name)
    (source,) = parse((ROOT / "crds" / f"{name}.yaml").read_text())
    assert rendered["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert rendered["spec"] == source["spec"]
    assert not one(helm.render("full"), "CustomResourceDefinition", name)["metadata"].get("annotations")


def test_the_platform_may_choose_the_user(helm: Helm) -> None:
    for _, pod in pod_templates(helm.render(sets={"securityContext.runAsUser": "null"})):
        assert pod["spec"]["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
        if "--controller-name=espalier.dev/operator" in (arguments := pod["spec"]["containers"][0].get("args", [])):
            assert settings_of(main.make_context("espalier-operator", list(arguments)).params).trainer_user is None


def test_the_class_of_extra_workers_has_the_value_that_the_platform_chooses(helm: Helm) -> None:
    found = [one(rendered, "PriorityClass")["value"] for rendered in (helm.render(), helm.render("full"))]
    assert found == [0, 100]


def test_all_pods_meet_quotas_of_limits_and_the_test_goes_where_the_operator_may(helm: Helm) -> None:
    """A ResourceQuota on a resource refuses each pod of which one container does not name it."""
    amounts = {"cpu": "1", "memory": "1Gi", "ephemeral-storage": "1Gi"}
    resources = {"requests": amounts, "limits": amounts}
    tolerations = [{"key": "dedicated", "operator": "Exists"}]
    sets = {
        "operator.resources": resources,
        "agent.resources": resources,
        "operator.tolerations": tolerations,
        "operator.nodeSelector": {"pool": "system"},
        "agent.policy": {"source": "Image", "image": "registry/policy:1"},
    }
    rendered = helm.render(sets={name: json.dumps(value) for name, value in sets.items()})
    agent = pod_of(rendered, "espalier-agent")
    operator = pod_of(rendered, "espalier-operator")
    test = one(rendered, "Pod")["spec"]
    for spec in (agent, operator, test):
        for container in (*spec.get("initContainers", ()), *spec["containers"]):
            assert container["resources"] == resources, container["name"]
    assert (test["tolerations"], test["nodeSelector"]) == (tolerations, {"pool": "system"})


@pytest.mark.parametrize("part", ["operator", "agent"])
def test_a_part_gets_what_is_added_to_it(helm: Helm, part: str) -> None:
    deployment = one(helm.render("extended"), "Deployment", f"espalier-{part}")["spec"]
    pod = deployment["template"]["spec"]
    container = pod["containers"][0]
    assert deployment["revisionHistoryLimit"] == 3
    assert [each["name"] for each in pod["imagePullSecrets"]] == ["registry", "shared", "more"]
    assert [each["value"] for each in container["env"][-2:]] == [
        "http://proxy.example.com:3128",
        "/certificates/ca.crt",
    ]
    assert {"name": "certificates", "configMap": {"name": "certificates"}} in pod["volumes"]
    mount = {"name": "certificates", "mountPath": "/certificates", "readOnly": True}
    assert mount in container["volumeMounts"]
    for each in pod["containers"]:
        assert each["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "procMount": "Default",
            "capabilities": {"drop": ["ALL"]},
        }
    (constraint,) = pod["topologySpreadConstraints"]
    assert (constraint["topologyKey"], constraint["whenUnsatisfiable"]) == ("example.com/room", "DoNotSchedule")
    assert (pod["dnsPolicy"], pod["dnsConfig"]["nameservers"]) == ("None", ["10.0.0.53"])
    plain = pod_of(helm.render(), f"espalier-{part}")["containers"][0]
    for name, changed in (
        ("startup", {"failureThreshold": 240}),
        ("readiness", {"timeoutSeconds": 9}),
        ("liveness", {"periodSeconds": 30}),
    ):
        assert container[f"{name}Probe"] == plain[f"{name}Probe"] | changed
    if part == "operator":
        assert {"name": "MALLOC_ARENA_MAX", "value": "2"} in pod["containers"][1]["env"]
    none = helm.render(sets={f"{part}.topologySpreadConstraints": "[]"})
    assert "topologySpreadConstraints" not in pod_of(none, f"espalier-{part}")


def test_an_umbrella_chart_switches_it_on_and_off(helm: Helm, tmp_path: Path) -> None:
    """With a condition, a tag, an alias, and values for all charts."""
    parent = tmp_path / "platform"
    shutil.copytree(CHART, parent / "charts" / "espalier")
    wanted = {"name": "espalier", "version": "*", "condition": "gpus.enabled", "tags": ["training"], "alias": "gpus"}
    chart = {"apiVersion": "v2", "name": "platform", "version": "1.0.0", "dependencies": [wanted]}
    (parent / "Chart.yaml").write_text(json.dumps(chart))
    (parent / "values.yaml").write_text(
        json.dumps({"tags": {"training": True}, "global": {"imagePullSecrets": [{"name": "shared"}]}, "gpus": {}})
    )
    options = ("template", "platform", str(parent), f"--kube-version={charts.KUBE_VERSION}")
    on = parse(helm(*options, "--set=gpus.enabled=true"))
    pods = [pod["spec"] for _, pod in pod_templates(list(on))]
    assert pods
    assert all(pod["imagePullSecrets"] == [{"name": "shared"}] for pod in pods)
    assert list(parse(helm(*options, "--set=gpus.enabled=false"))) == []


def test_metrics_are_served_and_scraped_over_tls(helm: Helm) -> None:
    rendered = helm.render("secured")
    for part in ("operator", "agent"):
        pod = pod_of(rendered, f"espalier-{part}")
        container = pod["containers"][0]
        options = {"--metrics-tls-dir=/metrics-tls", "--metrics-authentication=TokenReview"}
        assert options <= set(container["args"])
        assert {"name": "metrics", "containerPort": 8443} in container["ports"]
        assert {"name": "metrics-tls", "mountPath": "/metrics-tls", "readOnly": True} in container["volumeMounts"]
        assert {"name": "metrics-tls", "secret": {"secretName": "metrics-certificate"}} in pod["volumes"]
        service = {port["name"]: port["port"] for port in one(rendered, "Service", f"espalier-{part}")["spec"]["ports"]}
        assert (service["metrics"], 8080 in service.values()) == (8443, True)
        (endpoint,) = one(rendered, "ServiceMonitor", f"espalier-{part}")["spec"]["endpoints"]
        assert (endpoint["port"], endpoint["scheme"]) == ("metrics", "https")
        assert endpoint["bearerTokenFile"] == "/var/run/secrets/kubernetes.io/serviceaccount/token"
        policy = one(rendered, "NetworkPolicy", f"espalier-{part}")["spec"]
        assert policy["ingress"][-1]["ports"] == [{"port": "metrics"}]
        assert {"port": 6443} in policy["egress"][0]["ports"]
    reviews = {
        ("authentication.k8s.io", "tokenreviews", "create"),
        ("authorization.k8s.io", "subjectaccessreviews", "create"),
    }
    for role in ("espalier-operator", "espalier-agent"):
        assert reviews <= set(rights(one(rendered, "ClusterRole", role)["rules"]))
    assert "tokens need TLS; name a Secret" in helm.refuses(sets={"metrics.authentication": '"TokenReview"'})
