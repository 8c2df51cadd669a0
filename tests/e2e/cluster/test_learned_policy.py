"""The policy `learned` on real pods: workers run where its file wishes, and without a usable file `fair` decides."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kube import SYSTEM, Nodes, Space, digits, get_raw, helm, kubectl, pods_of, run, wait_for
from prometheus_client.parser import text_string_to_metric_families

from policy_files import APART, write_giving

FILE = "policy.safetensors"
CONFIG_MAP = "scheduling-policy"


@pytest.mark.nodes(2)
@pytest.mark.disturbs(operator=True)
def test_the_file_wishes_nodes_and_without_a_usable_file_fair_decides(
    space: Space, nodes: Nodes, installation: None, tmp_path: Path
) -> None:
    # It knows one thing: jobs on the same node slow each other down. The planner alone fills nodes up.
    put_file(write_giving(tmp_path / FILE, placement=APART))
    try:
        options = ("--reset-then-reuse-values", "--wait", "--timeout=180s", "--set", "policy.name=learned")
        file = ("--set", "policy.file.source=ConfigMap", "--set", f"policy.file.name={CONFIG_MAP}")
        helm("upgrade", "espalier", "charts/espalier", *options, *file, "--set", "policy.settings.wait=0.9")
        nodes.set_gpus(2, 2)
        alone = {"maxReplicas": 1, "adaptation": {"mode": "Off"}}
        space.apply(digits("first", budget=300, **alone))
        space.wait_condition("first", "Running")
        wait_for("its policy server has answered", lambda: counted("questions_total", "answered"))
        space.apply(digits("second", budget=300, **alone))
        space.wait_condition("second", "Running")
        assert {node_of(space, job) for job in ("first", "second")} == set(nodes.names)
        assert counted("fallback") == 0
        wait_for("it is told", lambda: "Policy learned:wait=0.9 serves it as number" in explained(space, "second"))

        # Another operator, whose policy server finds a damaged file. Jobs go on, and new ones start.
        damaged = tmp_path / "damaged" / FILE
        damaged.parent.mkdir()
        damaged.write_bytes((tmp_path / FILE).read_bytes()[:-8])
        put_file(damaged)
        kubectl("rollout", "restart", "deployment/espalier-operator", "--namespace", SYSTEM)
        kubectl(
            "rollout", "status", "deployment/espalier-operator", "--namespace", SYSTEM, "--timeout=120s", timeout=150
        )
        space.apply(digits("third", budget=300, **alone))
        space.wait_condition("third", "Running")
        assert counted("fallback") == 1
        assert counted("questions_total", "refused")
        wait_for("the reason is told", lambda: "not a safetensors file" in explained(space, "third"))
        for job in ("first", "second"):
            space.trains_on(job)
            status = space.status(job)
            assert (status["restarts"], status["preemptions"]) == (0, 0)
    finally:
        kubectl("delete", "configmap", CONFIG_MAP, "--namespace", SYSTEM, "--ignore-not-found")


def put_file(path: Path) -> None:
    """Create the ConfigMap with a policy file, or replace it."""
    made = ("create", "configmap", CONFIG_MAP, "--namespace", SYSTEM, f"--from-file={FILE}={path}")
    kubectl("apply", "--filename=-", text=kubectl(*made, "--dry-run=client", "--output=json"))


def node_of(space: Space, job: str) -> str:
    """Return the node of a job's leader."""
    leader = space.leader(job)
    assert leader is not None
    return str(leader["spec"]["nodeName"])


def counted(metric: str, *labels: str) -> float:
    """Return the value of a metric `espalier_scheduling_policy_METRIC` of the operator, 0 where there is none."""
    pods = pods_of("operator")
    if not pods:
        return 0.0
    text = get_raw(f"/api/v1/namespaces/{SYSTEM}/pods/{pods[0]['metadata']['name']}:8080/proxy/metrics")
    name = f"espalier_scheduling_policy_{metric}"
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and tuple(sample.labels.values()) == labels
    )


def explained(space: Space, job: str) -> str:
    """Return what `espalier explain` says about the scheduling policy."""
    text = run(".venv/bin/espalier", "explain", job, "--namespace", space.name, "--output", "json")
    sections = {section["title"]: section["lines"] for section in json.loads(text)["sections"]}
    return " ".join(sections.get("Scheduling policy", ()))
