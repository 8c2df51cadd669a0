"""The tutorial, word by word: what it tells a person to type is typed, and what it says comes of it, does."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from kube import ClusterError, Nodes, Space, get, get_raw, kubectl, wait_for

from pages import commands
from ports import free_port

PROJECT = Path(__file__).parents[3]
PAGE = (PROJECT / "docs" / "tutorial.md").read_text(encoding="utf-8")
OURS = ["make setup", "make cluster", "make cluster-down"]
"""What whoever runs these tests does around them."""
MONITORING = "monitoring"


class Shell:
    """A shell in the project's folder, whose namespace is the test's."""

    def __init__(self, space: Space, folder: Path) -> None:
        kubeconfig = folder / "kubeconfig"
        kubeconfig.write_text(kubectl("config", "view", "--raw", "--minify", "--flatten"))
        kubeconfig.chmod(0o600)
        path = f"{PROJECT / '.venv' / 'bin'}:{os.environ['PATH']}"
        self.environment = {**os.environ, "KUBECONFIG": str(kubeconfig), "PATH": path}
        self.space = space
        self.type(f"kubectl config set-context --current --namespace={space.name}")

    def type(self, line: str, seconds: float = 400) -> str:
        """Run a line to its end; return what it said."""
        ended = subprocess.run(
            ["bash", "-c", line],
            cwd=PROJECT,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=seconds,
            stdin=subprocess.DEVNULL,
        )
        if ended.returncode != 0:
            raise ClusterError(f"{line}\n{ended.stdout}{ended.stderr}")
        return ended.stdout


def typed(heading: str) -> list[str]:
    """Return what the section of this heading tells to type."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    assert section, f"the tutorial has no section {heading}"
    return commands(section)


@pytest.fixture
def shell(space: Space, tmp_path: Path) -> Shell:
    return Shell(space, tmp_path)


@pytest.fixture
def monitoring() -> Iterator[None]:
    """End what the tutorial installs beside Espalier."""
    yield
    kubectl("delete", "namespace", MONITORING, "--ignore-not-found", "--wait=true", timeout=120)
    for kind in ("clusterrole", "clusterrolebinding"):
        kubectl("delete", kind, "espalier-trial-prometheus", "--ignore-not-found")


def prometheus(query: str) -> list[dict[str, Any]]:
    """Return the series that the cluster's Prometheus gives for a query."""
    path = f"/api/v1/namespaces/{MONITORING}/services/prometheus:9090/proxy/api/v1/query?query={quote(query)}"
    found: list[dict[str, Any]] = json.loads(get_raw(path))["data"]["result"]
    return found


def series_of(namespace: str) -> set[str]:
    """Return the names of the metrics that the cluster's Prometheus has of a namespace."""
    return {series["metric"]["__name__"] for series in prometheus(f'{{namespace="{namespace}"}}')}


def grafana_answers(shell: Shell, opened: str) -> None:
    """See the panels' data through Grafana itself."""
    port = free_port()
    forward = subprocess.Popen(
        ["bash", "-c", f"exec {opened} {port}"], cwd=PROJECT, env=shell.environment, stdout=subprocess.PIPE, text=True
    )
    try:
        assert forward.stdout is not None
        assert str(port) in forward.stdout.readline()
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=20, trust_env=False) as grafana:
            for name in ("espalier-job", "espalier-fleet", "espalier-agent"):
                assert grafana.get(f"/api/dashboards/uid/{name}").status_code == 200
            query = {"refId": "A", "expr": "espalier_job_depth", "datasource": {"uid": "prometheus"}, "instant": True}
            answer = grafana.post("/api/ds/query", json={"from": "now-5m", "to": "now", "queries": [query]})
            assert answer.json()["results"]["A"]["frames"], answer.text
    finally:
        forward.terminate()
        forward.communicate(timeout=30)


@pytest.mark.nodes(2)
def test_the_tutorial(space: Space, nodes: Nodes, shell: Shell, monitoring: None) -> None:
    nodes.set_gpus(4, 4)
    begin = typed("A cluster, Espalier, Prometheus and Grafana")
    assert begin[:2] == OURS[:2]
    assert begin[2] == 'eval "$(hack/cluster env)"'  # which would take the test's namespace away
    for line in begin[3:]:
        shell.type(line)

    *grow, environment, opened = typed("A job grows")
    assert environment == begin[2]
    assert "patient" in [shell.type(line) for line in grow][-1]
    status = space.status("patient")
    assert status["scheduling"]["extra"] == 4
    assert (status["adaptations"][0]["depthBefore"], status["training"]["depth"]) == (4, 7)
    leader = space.leader("patient")
    assert leader is not None
    names = [item["metadata"]["name"] for item in get("deployments", namespace=MONITORING)["items"]]
    assert "prometheus" in names
    scraped = {"espalier_job_depth", "espalier_trainer_step_seconds_count"}
    wait_for("Prometheus finds operator and trainer", lambda: scraped <= series_of(space.name))
    if "grafana" in names:  # its image is not to be had everywhere; hack/cluster monitoring says so
        grafana_answers(shell, opened)

    needed = typed("Another one needs the GPUs")
    said = [shell.type(line) for line in needed]
    events = said[needed.index("kubectl get events --field-selector involvedObject.name=patient")]
    assert "NeededByOtherJob" in events
    assert "ReclaimForced" not in events
    assert re.search(r"patient +Complete .* 7 +3 ", said[-1]), said[-1]
    after = space.status("patient")
    assert after["restarts"] == 0
    assert after["timeBudget"]["usedSeconds"] == pytest.approx(90, abs=10)

    (draw,) = typed("Without Grafana")
    assert "--namespace default " in draw
    folder = PROJECT / "runs" / "dashboards"
    shell.type(draw.replace("--namespace default ", f"--namespace {space.name} "))
    for name in ("fleet", "job", "agent"):
        assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")

    *ends, last = typed("Clean up")
    assert last == OURS[2]
    for line in ends:
        shell.type(line)
    assert get("adaptivetrainingjobs", namespace=space.name)["items"] == []


@pytest.mark.nodes(2)
def test_monitors_come_to_a_cluster_that_is_there_while_a_job_trains(
    space: Space, nodes: Nodes, shell: Shell, monitoring_kinds: None
) -> None:
    nodes.set_gpus(4, 4)
    upgrade, apply = typed("On a cluster that you have")
    shell.type(apply)
    space.wait_condition("patient", "Running")
    before = {pod["metadata"]["uid"] for pod in space.pods("patient", "base")}
    revision = json.loads(shell.type("helm history espalier --namespace espalier-system --output json"))[-1]["revision"]
    try:
        shell.type(upgrade)
        made = {
            kind: [item["metadata"]["name"] for item in get(kind, namespace="espalier-system")["items"]]
            for kind in ("servicemonitors", "podmonitors", "prometheusrules")
        }
        assert len(made["servicemonitors"]) == 2
        assert len(made["podmonitors"]) == len(made["prometheusrules"]) == 1
        boards = get("configmaps", namespace="espalier-system", selector="grafana_dashboard=1")["items"]
        assert {name for item in boards for name in item["data"]} == {"fleet.json", "job.json", "agent.json"}
        wait_for("it trains on", lambda: space.status("patient").get("adaptationCount") == 3)
    finally:
        shell.type(f"helm rollback espalier {revision} --namespace espalier-system --wait")
    assert {pod["metadata"]["uid"] for pod in space.pods("patient", "base")} == before
    space.trains_on("patient")
    assert space.status("patient")["restarts"] == 0
