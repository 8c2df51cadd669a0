"""Processes, pods, nodes and namespaces that go away: the budget is kept, and the work too."""

from __future__ import annotations

from typing import Any

import pytest
from kube import (
    SYSTEM,
    ClusterError,
    Nodes,
    Space,
    digits,
    get,
    gpus,
    kubectl,
    on_shared_folder,
    operator_node,
    pods_of,
    shared_folder,
    wait_for,
)


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


@pytest.mark.disturbs(agent=True)
def test_the_agent_is_away_and_comes_back(space: Space, nodes: Nodes) -> None:
    nodes.set_gpus(2)
    adaptation = {"mode": "Auto", "maxAdaptations": 1, "decisionTimeoutSeconds": 5, "fallback": "Heuristic"}
    kubectl("scale", "deployment/espalier-agent", "--namespace", SYSTEM, "--replicas=0")
    try:
        selector = "app.kubernetes.io/name=espalier-agent"
        wait_for("the agent is away", lambda: not get("pods", namespace=SYSTEM, selector=selector)["items"])
        space.apply(digits("alone", budget=60, adaptation=adaptation))
        wait_for("it adapts", lambda: space.status("alone").get("adaptations"))
    finally:
        kubectl("scale", "deployment/espalier-agent", "--namespace", SYSTEM, "--replicas=1")
    decided = space.status("alone")["adaptations"]
    assert [entry["source"] for entry in decided] == ["fallback"]
    assert decided[0]["reason"] == "AgentUnavailable"
    assert decided[0]["result"] == "Grown", "the heuristic grows"
    wait_for("an Event says so", lambda: space.events("AgentUnavailable"))
    kubectl("delete", "atj", "alone", "--namespace", space.name)
    kubectl("rollout", "status", "deployment/espalier-agent", "--namespace", SYSTEM, "--timeout=60s", timeout=90)
    space.apply(digits("advised", budget=60, adaptation=adaptation))
    wait_for("it adapts", lambda: space.status("advised").get("adaptations"))
    assert [entry["source"] for entry in space.status("advised")["adaptations"]] == ["agent"]


@pytest.mark.without_agent
def test_a_deleted_leader_goes_on_from_its_checkpoint(space: Space, nodes: Nodes) -> None:
    nodes.set_gpus(1)
    shared_folder(space, nodes.names[0])
    space.apply(digits("phoenix", budget=45, maxReplicas=1, template=on_shared_folder(space)))
    space.wait_condition("phoenix", "Running")
    for number in (1, 2):
        wait_for("it has a checkpoint", lambda: "lastCheckpointTime" in space.status("phoenix"))
        leader = wait_for("a leader", lambda: space.leader("phoenix"))
        used, step = space.report("phoenix")["usedSeconds"], space.report("phoenix")["step"]
        kubectl("delete", "pod", leader["metadata"]["name"], "--namespace", space.name, "--wait=false")

        def again(old: str = leader["metadata"]["uid"]) -> dict[str, Any] | None:
            found = space.leader("phoenix")
            return found if found is not None and found["metadata"]["uid"] != old else None

        successor = wait_for("a new leader runs", again, every=0.1)

        def reported(uid: str = successor["metadata"]["uid"]) -> dict[str, Any] | None:
            found = space.report("phoenix")
            return found if found.get("incarnation") == uid and found["phase"] == "Training" else None

        report = wait_for("it trains", reported)
        assert report["usedSeconds"] >= used, "budget was given back"
        assert report["step"] >= step, "it did not continue from its checkpoint"
        status = wait_for("it is counted", lambda n=number: (s := space.status("phoenix"))["restarts"] == n and s)
        assert status["preemptions"] == number
    complete = space.wait_condition("phoenix", "Complete")
    assert complete["reason"] == "BudgetExhausted"
    assert space.status("phoenix")["scheduling"]["failures"] == 0
    assert 40 <= space.status("phoenix")["timeBudget"]["usedSeconds"] <= 60


@pytest.mark.nodes(2)
@pytest.mark.disturbs(agent=True)
def test_a_lost_node_costs_no_budget(space: Space, nodes: Nodes) -> None:
    # Not the operator's own node: that it comes back elsewhere takes longer and is Kubernetes' doing.
    lost, other = sorted(nodes.names, key=lambda name: name == operator_node())
    gpus(lost, 1)
    # Until the node is known to be lost, which takes Kubernetes most of a minute, its leader counts as running.
    unreachable = {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute"}
    trainer = {"name": "trainer", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    template = {"spec": {"containers": [trainer], "tolerations": [{**unreachable, "tolerationSeconds": 5}]}}
    space.apply(digits("survivor", budget=80, maxReplicas=1, template=template))
    space.wait_condition("survivor", "Running")
    gpus(other, 1)
    with nodes.frozen(lost):
        wait_for("the node is not ready", lambda: not nodes.ready(lost))
        successor = wait_for(
            "a leader elsewhere",
            lambda: (found := space.leader("survivor")) and found["spec"]["nodeName"] != lost and found,
        )
        used = space.status("survivor")["timeBudget"]["usedSeconds"]
        complete = space.wait_condition("survivor", "Complete")
    assert complete["reason"] == "BudgetExhausted"
    status = space.status("survivor")
    assert status["preemptions"] == 1
    assert status["timeBudget"]["usedSeconds"] >= used
    assert successor["metadata"]["labels"]["espalier.dev/attempt"] == "1"


def test_a_namespace_is_deleted_in_the_middle(space: Space, nodes: Nodes) -> None:
    nodes.set_gpus(2)
    restarts = operator_restarts()
    space.apply(digits("doomed", budget=600), digits("waiting", budget=600, minReplicas=2))
    space.wait_extra("doomed", 1)
    kubectl("delete", "namespace", space.name, "--wait=false")

    def gone() -> bool:
        try:
            get("namespaces", space.name)
        except ClusterError as error:
            return "NotFound" in str(error)
        return False

    wait_for("the namespace is gone", gone)
    assert operator_restarts() == restarts
    # The operator still works.
    kubectl("create", "namespace", space.name)
    space.apply(digits("after", budget=60, maxReplicas=1))
    space.wait_condition("after", "Running")


@pytest.mark.without_agent
def test_an_image_that_cannot_be_pulled(space: Space, nodes: Nodes) -> None:
    nodes.set_gpus(1)
    template = {"spec": {"containers": [{"name": "trainer", "image": "localhost/espalier-no-such-image:1"}]}}
    template["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
    space.apply(digits("unpulled", budget=60, template=template, preRunningDeadlineSeconds=15))
    wait_for("it says why", lambda: space.condition("unpulled", "Running").get("reason") == "ImagePullFailed")
    failed = space.wait_condition("unpulled", "Failed")
    assert failed["reason"] == "ImagePullFailed"
    assert "localhost/espalier-no-such-image:1" in failed["message"]
    # Its GPU is free again.
    space.apply(digits("next", budget=60, maxReplicas=1))
    space.wait_condition("next", "Running")


@pytest.mark.without_agent
def test_an_image_without_the_trainer_library(space: Space, nodes: Nodes) -> None:
    nodes.set_gpus(2)
    image = pods_of("operator")[0]["spec"]["containers"][0]["image"]
    container = {
        "name": "own",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "-c", "import time; time.sleep(15); print('trained')"],
        "resources": {"limits": {"nvidia.com/gpu": "1"}},
    }
    space.apply(digits("own", budget=600, template={"spec": {"containers": [container]}}))
    wait_for("it is told", lambda: space.condition("own", "ExtraGPUsGranted").get("reason") == "NoReport")
    complete = space.wait_condition("own", "Complete")
    assert complete["reason"] == "Completed"
    assert space.status("own")["allocation"]["generation"] <= 2, "nothing was lent to it"


@pytest.mark.without_agent
def test_a_jobs_account_sees_its_own_job_and_nothing_else(space: Space, nodes: Nodes) -> None:
    nodes.set_gpus(2)
    space.apply(digits("mine", budget=20, maxReplicas=1), digits("other", budget=20, maxReplicas=1))
    space.wait_condition("mine", "Running")
    space.wait_condition("other", "Running")
    user = f"--as=system:serviceaccount:{space.name}:mine-trainer"

    def may(*what: str) -> bool:
        try:
            return kubectl("auth", "can-i", *what, "--namespace", space.name, user).strip() == "yes"
        except ClusterError:
            return False  # can-i ends with 1 for no

    assert may("get", "adaptivetrainingjobs/mine")
    assert may("watch", "adaptivetrainingjobs/mine")
    assert may("patch", "configmaps/mine-report")
    for denied in (
        ("get", "adaptivetrainingjobs/other"),
        ("list", "adaptivetrainingjobs"),
        ("patch", "adaptivetrainingjobs/mine"),
        ("patch", "adaptivetrainingjobs/mine", "--subresource=status"),
        ("get", "configmaps/other-report"),
        ("patch", "configmaps/other-report"),
        ("list", "configmaps"),
        ("get", "secrets"),
        ("list", "secrets"),
        ("get", "pods"),
        ("create", "pods"),
        ("create", "pods/exec"),
    ):
        assert not may(*denied), denied
    # Not by the API's word alone: its real token is refused.
    token = kubectl("create", "token", "mine-trainer", "--namespace", space.name).strip()
    server = kubectl("config", "view", "--minify", "--output=jsonpath={.clusters[0].cluster.server}")
    plain = ("--kubeconfig=/dev/null", "--insecure-skip-tls-verify", f"--server={server}", f"--token={token}")
    assert "mine" in kubectl(*plain, "get", "adaptivetrainingjob", "mine", "--namespace", space.name)
    for kind in ("adaptivetrainingjob/other", "secrets", "configmap/other-report"):
        try:
            kubectl(*plain, "get", kind, "--namespace", space.name)
        except ClusterError as error:
            assert "forbidden" in str(error).lower()
        else:
            raise AssertionError(f"its token could read {kind}")


def operator_restarts() -> int:
    return sum(entry["restartCount"] for pod in pods_of("operator") for entry in pod["status"]["containerStatuses"])
