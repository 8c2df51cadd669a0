"""An installation that is changed, on nodes: another policy, another version, an operator that dies."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from kube import PROJECT, SYSTEM, Nodes, Space, digits, helm, kubectl, pods_of, run, wait_for

from espalier_agent.policies.policy import POLICY_FILE, default_policy, save_policy
from pages import commands

PREVIOUS = PROJECT / "tests" / "integration" / "data" / "espalier-0.1.0-alpha.tgz"
IMAGE = "localhost/espalier-test-policy:dev"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Give a folder with a policy `mine` in it, and the chart."""
    save_policy(default_policy(), tmp_path / "policies" / "mine")
    named(tmp_path, "mine")
    (tmp_path / "charts").symlink_to(PROJECT / "charts")
    return tmp_path


def named(folder: Path, name: str) -> None:
    """Give that policy another name."""
    document = folder / "policies" / "mine" / POLICY_FILE
    document.write_text(json.dumps({**json.loads(document.read_text()), "name": name}))


def adviser(space: Space, job: str) -> tuple[str, str]:
    """Return on whose advice a new job grows, and by which policy."""
    space.apply(digits(job, budget=60))
    wait_for("it grows", lambda: space.status(job).get("adaptationCount"))
    grown = space.status(job)["adaptations"][0]
    kubectl("delete", "atj", job, "--namespace", space.name)
    return grown["source"], grown["policy"].partition("@")[0]


@pytest.mark.disturbs(agent=True)
def test_the_agent_takes_a_policy_from_a_config_map_as_the_book_says_and_from_an_image(
    space: Space, nodes: Nodes, installation: None, folder: Path
) -> None:
    nodes.set_gpus(2)
    section = (PROJECT / "docs" / "research.md").read_text().partition("\n### On a cluster\n")[2]
    create, upgrade = commands(section)[:2]
    try:
        for line in (create, upgrade):
            run("bash", "-c", line, folder=folder)
        kubectl("rollout", "status", "deployment/espalier-agent", "--namespace", SYSTEM, "--timeout=120s", timeout=150)
        assert adviser(space, "first") == ("agent", "mine")
    finally:
        kubectl("delete", "configmap", "policy", "--namespace", SYSTEM, "--ignore-not-found")

    named(folder, "baked")
    # The operator's image is on the nodes, and has a `cp`.
    source = "FROM localhost/espalier-operator:dev\nCOPY policies/mine /policy\n"
    (folder / "charts").unlink()
    run("docker", "build", "--tag", IMAGE, "--file", "-", ".", folder=folder, text=source)
    run(os.environ["ESPALIER_LOAD_IMAGE"], IMAGE)
    helm(
        *("upgrade", "espalier", "charts/espalier", "--reset-then-reuse-values", "--wait", "--timeout=180s"),
        *(
            "--set",
            "agent.policy.source=Image",
            "--set",
            f"agent.policy.image={IMAGE}",
            "--set",
            "agent.policy.configMap=",
        ),
    )
    assert adviser(space, "second") == ("agent", "baked")


@pytest.mark.disturbs(operator=True, agent=True)
def test_a_job_lives_through_an_upgrade_from_the_previous_chart(space: Space, nodes: Nodes, installation: None) -> None:
    nodes.set_gpus(2)
    options = ("--reset-then-reuse-values", "--wait", "--timeout=180s")
    helm("upgrade", "espalier", str(PREVIOUS), *options, "--set", "rbac.podLogs=null")  # which it does not know
    space.apply(digits("lives", budget=45))
    space.wait_extra("lives", 1)
    wait_for("it has grown", lambda: space.status("lives").get("adaptationCount"))
    leader = space.leader("lives")
    assert leader is not None

    helm("upgrade", "espalier", "charts/espalier", *options, "--set", "rbac.podLogs=true")
    assert json.loads(helm("list", "--output=json"))[0]["chart"] != "espalier-0.1.0-alpha"
    assert pods_of("operator")
    space.wait_condition("lives", "Complete")
    assert {pod["metadata"]["uid"] for pod in space.pods("lives", "base")} <= {leader["metadata"]["uid"]}
    status = space.status("lives")
    assert status["restarts"] == 0
    assert status["timeBudget"]["usedSeconds"] == pytest.approx(45, abs=10)


@pytest.mark.disturbs(operator=True)
def test_the_operator_is_killed_while_a_job_adapts(space: Space, nodes: Nodes) -> None:
    nodes.set_gpus(1)
    space.apply(digits("steady", budget=45))
    space.wait_condition("steady", "Running")
    before = space.status("steady")
    nodes.set_gpus(2)
    wait_for("more is allocated", lambda: space.status("steady")["allocation"]["replicas"] == 2, every=0.05)
    for pod in pods_of("operator"):
        kubectl("delete", "pod", pod["metadata"]["name"], "--namespace", SYSTEM, "--grace-period=0", "--force")
    complete = space.wait_condition("steady", "Complete")
    assert complete["reason"] == "BudgetExhausted"
    status = space.status("steady")
    assert status["adaptationCount"] >= 1
    assert (status["restarts"], status["preemptions"]) == (0, 0), "the training took no notice"
    assert status["timeBudget"]["usedSeconds"] >= before["timeBudget"]["usedSeconds"]
    assert status["timeBudget"]["usedSeconds"] <= 55
    assert len(space.pods("steady", "base")) == 1
