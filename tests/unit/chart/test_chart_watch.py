"""Who reaches what, and who watches it: NetworkPolicies, monitors, rules, dashboards, `helm test`."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
from charts import CHART, SYSTEM, Helm, bound_rights, of, one, parse, pod_templates

from espalier_core.metrics import JOB
from espalier_core.types.status import JobStatus
from espalier_operator.kube.objects.worker_pod import worker_pod
from espalier_operator.kube.settings import KubeSettings
from espalier_operator.model import WorkerRole
from http_answers import answering
from operator_world.kube_objects import kube_job

RULES = sorted(path.stem for path in (CHART / "rules").glob("*.yaml"))


DASHBOARDS = sorted(path.stem for path in (CHART / "dashboards").glob("*.json"))


def test_workers_reach_the_agent_and_prometheus_both(helm: Helm) -> None:
    prometheus = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    labels = {"app.kubernetes.io/name": "espalier-test", "app.kubernetes.io/instance": "espalier"}
    test = {"podSelector": {"matchLabels": labels}}
    worker = {
        "namespaceSelector": {},
        "podSelector": {"matchExpressions": [{"key": "espalier.dev/job", "operator": "Exists"}]},
    }
    rendered = helm.render()
    agent, operator = (one(rendered, "NetworkPolicy", f"espalier-{part}")["spec"] for part in ("agent", "operator"))
    assert [rule["from"] for rule in agent["ingress"]] == [[worker], [test], [prometheus]]
    assert [rule["from"] for rule in operator["ingress"]] == [[worker], [test], [prometheus]]
    assert operator["ingress"][0]["ports"] == [{"port": "progress"}], "not to its metrics, which name jobs of others"
    assert agent["policyTypes"] == operator["policyTypes"] == ["Ingress"], "where they go is not restricted"
    (pod,) = of(rendered, "Pod")
    assert labels.items() <= pod["metadata"]["labels"].items()


def test_only_workers_of_the_namespaces_looked_after_reach_the_agent(helm: Helm) -> None:
    agent = one(helm.render("namespaced"), "NetworkPolicy", "espalier-agent")["spec"]
    assert agent["ingress"][0]["from"][0]["namespaceSelector"] == {
        "matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["team-a", "team-b"]}]
    }


def test_what_leaves_operator_and_agent_goes_to_what_they_read_and_the_name_server(helm: Helm) -> None:
    egress = {"networkPolicy.egress": '{"enabled": true, "apiServerPorts": [6443]}'}
    api_server = {"ports": [{"port": 6443}, {"port": 53}, {"port": 53, "protocol": "UDP"}]}
    workers = {"matchExpressions": [{"key": "espalier.dev/job", "operator": "Exists"}]}
    metrics = {"to": [{"namespaceSelector": {}, "podSelector": workers}]}
    rendered = helm.render(sets=egress)
    for part, whereto in (("agent", [api_server]), ("operator", [api_server, metrics])):
        spec = one(rendered, "NetworkPolicy", f"espalier-{part}")["spec"]
        assert spec["policyTypes"] == ["Ingress", "Egress"]
        assert spec["egress"] == whereto
    ports = {"http://collector:4318/v1": 4318, "https://[::1]/v1": 443, "http://[fd00::7]:80": 80}
    for endpoint, port in ports.items():
        rendered = helm.render(sets=egress | {"operator.traces.endpoint": f'"{endpoint}"'})
        spec = one(rendered, "NetworkPolicy", "espalier-operator")["spec"]
        assert spec["egress"] == [api_server, metrics, {"ports": [{"port": port}]}]
    server = {"policy.name": '"learned"', "policy.settings.url": '"http://policy.ml.svc:8090"'}
    spec = one(helm.render(sets=egress | server), "NetworkPolicy", "espalier-operator")["spec"]
    assert spec["egress"] == [api_server, metrics, {"ports": [{"port": 8090}]}]
    sets = {"networkPolicy.egress": '{"enabled": true}', "agent.authentication": '"None"'}
    agent = one(helm.render(sets=sets), "NetworkPolicy", "espalier-agent")["spec"]
    assert (agent["policyTypes"], agent["egress"]) == (["Ingress", "Egress"], []), "it asks nobody anything"


@pytest.mark.parametrize("others", ["true", "false"])
def test_only_workers_of_their_namespace_reach_workers(helm: Helm, others: str) -> None:
    """Whether or not there are policies for operator and agent."""
    rendered = helm.render("namespaced", sets={"networkPolicy.workers": "true", "networkPolicy.enabled": others})
    policies = [each for each in of(rendered, "NetworkPolicy") if each["metadata"]["name"] == "espalier-workers"]
    assert [each["metadata"]["namespace"] for each in policies] == ["team-a", "team-b"]
    worker = {"matchExpressions": [{"key": "espalier.dev/job", "operator": "Exists"}]}
    for each in policies:
        assert each["spec"]["podSelector"] == worker
        own, operator, prometheus = each["spec"]["ingress"]
        assert own == {"from": [{"podSelector": worker}]}, "without a namespaceSelector: its own"
        (reader,) = operator.pop("from")
        assert not operator, "on any port: the author of a program chooses that of its metrics"
        assert reader["namespaceSelector"] == {"matchLabels": {"kubernetes.io/metadata.name": SYSTEM}}
        pods = one(rendered, "Deployment", "espalier-operator")["spec"]["template"]["metadata"]["labels"]
        assert reader["podSelector"]["matchLabels"].items() <= pods.items()
        assert prometheus["ports"] == [{"port": "metrics"}]


def test_jobs_get_a_policy_each_unless_that_of_their_namespace_admits_less(helm: Helm) -> None:
    """Policies add up: one that admits more would open what the other one closes."""
    chosen: list[dict[str, str]] = [{}, {"networkPolicy.enabled": "false"}, {"networkPolicy.jobs": "false"}]
    for sets in (*chosen, {"networkPolicy.workers": "true"}):
        rendered = helm.render("namespaced", sets=sets)
        args = one(rendered, "Deployment", "espalier-operator")["spec"]["template"]["spec"]["containers"][0]["args"]
        made = not {"networkPolicy.jobs", "networkPolicy.workers"} & sets.keys()
        assert ("--worker-network-policies" in args) is made
        policies = {right for right in bound_rights(rendered)["team-a"] if right[1] == "networkpolicies"}
        verbs = {"get", "create", "patch"} if made else set()
        assert policies == {("networking.k8s.io", "networkpolicies", verb) for verb in verbs}


def test_nobody_scrapes_where_nobody_may(helm: Helm) -> None:
    rendered = helm.render(sets={"networkPolicy.metricsFrom": "[]"})
    posts, _ = one(rendered, "NetworkPolicy", "espalier-operator")["spec"]["ingress"]
    assert posts["ports"] == [{"port": "progress"}]


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


@pytest.mark.parametrize("interval", ["15s", "1m30s", "1d"])
def test_an_interval_is_written_as_prometheus_has_it(helm: Helm, interval: str) -> None:
    sets = {name: json.dumps({"enabled": True, "interval": interval}) for name in ("serviceMonitor", "podMonitor")}
    rendered = helm.render(sets=sets)
    found = [*of(rendered, "ServiceMonitor"), *of(rendered, "PodMonitor")]
    ends = [each["spec"].get("endpoints") or each["spec"]["podMetricsEndpoints"] for each in found]
    assert {end["interval"] for of_one in ends for end in of_one} == {interval}


def test_workers_are_found_by_who_scrapes_them_and_let_in_by_the_agent(helm: Helm) -> None:
    """A leader as the operator makes it: its labels and its port."""
    leader = worker_pod(kube_job(), JobStatus(), WorkerRole.BASE, 0, 0, KubeSettings())
    rendered = helm.render("full")
    monitor = one(rendered, "PodMonitor")["spec"]
    assert monitor["selector"]["matchLabels"].items() <= leader["metadata"]["labels"].items()
    (endpoint,) = monitor["podMetricsEndpoints"]
    assert endpoint["port"] in {port["name"] for port in leader["spec"]["containers"][0]["ports"]}
    (relabelling,) = endpoint["relabelings"]
    labels = {re.sub(r"[^a-zA-Z0-9_]", "_", key): value for key, value in leader["metadata"]["labels"].items()}
    (source,) = relabelling["sourceLabels"]
    assert labels[source.removeprefix("__meta_kubernetes_pod_label_")] == kube_job().name
    assert relabelling["targetLabel"] in JOB
    agent = one(rendered, "NetworkPolicy", "gpus-agent")["spec"]
    (asked,) = agent["ingress"][0]["from"][0]["podSelector"]["matchExpressions"]
    assert asked["operator"] == "Exists"
    assert asked["key"] in leader["metadata"]["labels"]
    for _, pod in pod_templates(rendered):
        assert asked["key"] not in pod["metadata"]["labels"], "our own pods are no workers"


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


def test_alerts_name_the_page_that_says_what_to_do_where_it_is(helm: Helm) -> None:
    def pages(*files: str, url: str | None = None) -> dict[str, str]:
        sets = {"prometheusRule.enabled": "true"}
        if url is not None:
            sets["prometheusRule.runbookUrl"] = json.dumps(url)
        found = of(helm.render(*files, sets=sets), "PrometheusRule")
        rules = [rule for each in found for group in each["spec"]["groups"] for rule in group["rules"]]
        return {rule["alert"]: rule["annotations"]["runbook_url"] for rule in rules}

    ours = pages()
    assert len(ours) > 5
    assert all(page.startswith("docs/reference/alerts.md#") for page in ours.values())
    for url in ("https://docs.example.com/espalier/alerts/", "http://10.0.0.1:8000/a%20b.html?x={{y}}&z='1'"):
        assert pages(url=url) == {name: page.replace("docs/reference/alerts.md", url) for name, page in ours.items()}
    assert pages("monitored")["EspalierTickOld"] == "https://docs.example.com/espalier/alerts/#espaliertickold"


@pytest.mark.parametrize("url", ["", "a b", 'https://"', "https://docs/#alerts", "a\\b"])
def test_a_page_that_is_no_address_is_refused(helm: Helm, url: str) -> None:
    assert "runbookUrl" in helm.refuses(sets={"prometheusRule.runbookUrl": json.dumps(url)})


@pytest.mark.parametrize(("code", "passes"), [(200, True), (503, False)])
def test_helm_test_asks_both_and_fails_where_one_does_not_answer(helm: Helm, code: int, passes: bool) -> None:
    """The pod's own command is run, by this Python; only the services' names are other ones."""
    (container,) = one(helm.render(), "Pod")["spec"]["containers"]
    python, option, script, *urls = container["command"]
    services = [f"http://espalier-{part}.{SYSTEM}.svc:8080" for part in ("operator", "agent")]
    assert (python, option) == ("python", "-c")
    assert urls == [f"{services[0]}/healthz", f"{services[1]}/readyz"]
    with answering(lambda path: ({"/healthz": code, "/readyz": 200}[path], b"the last tick: 1.0 s ago")) as url:
        here = [re.sub(r"http://[^/]+", url, each) for each in urls]
        result = subprocess.run([sys.executable, "-c", script, *here], capture_output=True, text=True, timeout=60)
    assert (result.returncode == 0) is passes, result.stderr
    assert (f"{here[1]} 200" in result.stdout) is passes
    assert ("HTTP Error 503" in result.stderr) is not passes
