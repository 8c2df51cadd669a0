"""The operator with the rights that `deploy/` gives it, and no others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from apiserver import ApiServer
from operators import World
from ruamel.yaml import YAML

from espalier_core.k8s.resources import DEVICE_KINDS
from espalier_operator.kube import start_events
from operator_world.kube_devices import RESOURCE, claiming

DEPLOY = Path(__file__).parents[2] / "deploy"
SYSTEM = "espalier-system"
PATHS = {
    "Namespace": "/api/v1/namespaces",
    "ServiceAccount": "/api/v1/namespaces/{namespace}/serviceaccounts",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings",
}


def deployed() -> Iterator[dict[str, Any]]:
    """Yield the objects of `deploy/` that say who may what, those that others need first."""
    objects = [each for file in sorted(DEPLOY.glob("*.yaml")) for each in YAML(typ="safe", pure=True).load_all(file)]
    for kind in PATHS:
        yield from (each for each in objects if each["kind"] == kind)


@pytest.fixture
def account(cluster: ApiServer, tmp_path: Path) -> Path:
    """Give the kubeconfig of the operator's ServiceAccount."""
    for each in deployed():
        path = PATHS[each["kind"]].format(namespace=each["metadata"].get("namespace"))
        answer = cluster.api.post(path, json=each)
        assert answer.status_code in (201, 409), answer.text
    config = tmp_path / "operator"
    config.write_text(cluster.kubeconfig_text(cluster.token(SYSTEM, "espalier-operator")))
    return config


def test_without_the_right_to_read_logs_a_program_runs_and_its_job_says_what_is_missing(
    account: Path, world: World
) -> None:
    world.kubelet.add_node("node", 1)
    world.operate(kubeconfig=account)
    world.trainers.silent.add("program")
    log = {"progress": {"log": {"pattern": "step (?P<step>[0-9]+)"}}}
    world.jobs.make("program", program=log, timeBudgetSeconds=600)
    world.until_condition("program", "Running", "True", "Running")
    world.until_event("program", "LogsForbidden")
    (event,) = (each for each in world.jobs.events("program") if each["reason"] == "LogsForbidden")
    assert "set rbac.podLogs in the operator's chart" in event["message"]
    assert world.jobs.condition("program", "Running") == ("True", "Running")


def test_without_the_right_to_list_events_a_job_says_what_its_pod_says(
    account: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As under the roles of an earlier version."""
    monkeypatch.setattr(start_events, "AFTER", 0.0)
    roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles/espalier-operator-jobs"
    rules = world.server.request("GET", roles)["rules"]
    older = [{**each, "verbs": ["create"]} if each["resources"] == ["events"] else each for each in rules]
    world.server.request("PATCH", roles, {"rules": older})
    try:
        world.kubelet.add_node("node", 2)
        world.kubelet.hindrance = lambda pod: ("FailedMount", "no") if "waits" in pod["metadata"]["name"] else None
        operator = world.operate(kubeconfig=account)
        world.jobs.make("waits")
        world.jobs.make("runs")
        world.until_condition("runs", "Running", "True", "Running")
        words = "node node has not mounted the volumes of pod waits-base-0-0"

        def said() -> bool:
            found = [each for each in world.jobs.status("waits")["conditions"] if each["type"] == "Running"]
            return [words in each["message"] for each in found] == [True]

        world.until("its condition names what the pod says", said)
        assert world.jobs.condition("waits", "Running") == ("False", "Starting")
        refused = {key: count for key, count in operator.client.requests.items() if key[2] == 403}
        assert refused == {("list", "events", 403): 1}
    finally:
        world.server.request("PATCH", roles, {"rules": rules})


def test_without_the_right_to_read_devices_all_else_works(account: Path, world: World) -> None:
    """The settings name a DeviceClass, and the roles do not know of it."""
    world.kubelet.add_node("node", 1)
    operator = world.operate(kubeconfig=account, other_gpu_resources=(RESOURCE,))
    world.jobs.make("job")
    world.until_condition("job", "Running", "True", "Running")
    world.jobs.make("claims", template={"spec": claiming()})
    world.until_condition("claims", "Admitted", "False", "InvalidSpec")
    forbidden = {key[1] for key in operator.client.requests if key[2] == 403}
    assert forbidden == {kind.plural for kind in DEVICE_KINDS}
