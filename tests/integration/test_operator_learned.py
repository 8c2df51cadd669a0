"""The policy `learned` on a real API server: pods go where its file wishes, and jobs start when its server is away."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from operators import InProcess, World
from prometheus_client.parser import text_string_to_metric_families

from policy_files import APART, write_giving
from policy_server_process import serving

LENDING: Any = {"noticeSeconds": 5, "cooldownSeconds": 0, "minRuntimeSeconds": 0}


def test_pods_run_where_the_file_wishes_and_without_its_server_fair_decides(world: World, tmp_path: Path) -> None:
    for name in ("one", "two"):
        world.kubelet.add_node(name, 2)
    with serving(write_giving(tmp_path / "policy.safetensors", placement=APART)) as url:
        operator = world.operate(policy=f"learned:url={url}", persist_seconds=0.2)
        for job in ("first", "second"):
            world.jobs.make(job, maxReplicas=1, preemption=LENDING)
            world.until_condition(job, "Running", "True", "Running")
        assert {node_of(world, job) for job in ("first", "second")} == {"one", "two"}
        assert policy_metrics(operator, "answered")["espalier_scheduling_policy_fallback"] == 0
    world.jobs.make("third", maxReplicas=2, preemption=LENDING)
    world.until_condition("third", "Running", "True", "Running")
    world.until_lent("third")
    found = policy_metrics(operator, "away")
    assert found["espalier_scheduling_policy_fallback"] == 1
    assert found["espalier_scheduling_policy_questions_total"] >= 1
    assert world.jobs.status("third")["schedulingPolicy"] == f"learned:url={url}"
    for job in ("first", "second"):
        status = world.jobs.status(job)
        assert (status.get("restarts", 0), status.get("preemptions", 0)) == (0, 0)


def node_of(world: World, job: str) -> str:
    (pod,) = world.pods(job).values()
    return str(pod["spec"]["nodeName"])


def policy_metrics(operator: InProcess, answer: str) -> dict[str, float]:
    """Return the operator's metrics of its policy; of questions, those with this answer."""
    text = operator.operator._metrics.text(leads=True).decode()
    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("espalier_scheduling_policy") and sample.labels.get("answer", answer) == answer
    }
