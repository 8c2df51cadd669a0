"""The API server and the fake kubelet that other tests stand on."""

from __future__ import annotations

import signal

import httpx
import pytest
from apiserver import JOBS, ApiServer
from fake_kubelet import FakeKubelet


def pod(name: str, gpus: int = 0, owner: dict[str, str] | None = None, **spec: object) -> dict[str, object]:
    """Return a pod with one container."""
    limits = {"nvidia.com/gpu": str(gpus)} if gpus else {}
    container = {"name": "trainer", "image": "trainer:dev", "resources": {"limits": limits}}
    metadata = {"name": name, "ownerReferences": [owner] if owner else []}
    return {"metadata": metadata, "spec": {"containers": [container], **spec}}


def job(name: str) -> dict[str, object]:
    """Return the smallest job."""
    head = {"apiVersion": "espalier.dev/v1alpha1", "kind": "AdaptiveTrainingJob"}
    return {**head, "metadata": {"name": name}, "spec": {"timeBudgetSeconds": 60}}


@pytest.mark.sweep("signals that end a server")
@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGKILL])
def test_objects_tokens_and_clients_outlive_a_restart_of_the_server(cluster: ApiServer, sig: signal.Signals) -> None:
    """`stop` and `start` are a control plane that restarts."""
    namespace = cluster.namespace()
    token = cluster.token(namespace, "default")
    path = f"{JOBS}/namespaces/{namespace}/adaptivetrainingjobs"
    made = cluster.request("POST", path, job("kept"))
    cluster.stop(sig)
    with pytest.raises(httpx.TransportError):
        cluster.api.get(path)
    cluster.start()
    assert cluster.request("GET", f"{path}/kept") == made
    with cluster.client(token) as someone:
        assert someone.get(path).status_code == 403, "RBAC is on: a ServiceAccount without a role may nothing"


def test_pods_are_bound_run_and_end(cluster: ApiServer, kubelet: FakeKubelet) -> None:
    """A pod waits for GPUs, runs, ends with an exit code, and gives its GPUs to the next."""
    namespace = cluster.namespace()
    path = f"/api/v1/namespaces/{namespace}/pods"
    cluster.request("POST", path, pod("first", gpus=2))

    def scheduled(name: str, status: str) -> bool:
        conditions = cluster.request("GET", f"{path}/{name}")["status"].get("conditions", ())
        return any(each["type"] == "PodScheduled" and each["status"] == status for each in conditions)

    kubelet.wait_for("it is unschedulable without a node", lambda: scheduled("first", "False"))
    kubelet.add_node("node-1", gpus=2, gpu_type="H200")
    running = kubelet.wait_running(namespace, "first")
    assert running["spec"]["nodeName"] == "node-1"
    assert "startedAt" in running["status"]["containerStatuses"][0]["state"]["running"]

    cluster.request("POST", path, pod("second", gpus=1, nodeSelector={"nvidia.com/gpu.product": "H200"}))
    kubelet.wait_for("no GPU is free for the second", lambda: scheduled("second", "False"))
    kubelet.end(namespace, "first", 7, "went wrong")
    kubelet.wait_running(namespace, "second")
    ended = cluster.request("GET", f"{path}/first")["status"]
    assert (ended["phase"], ended["containerStatuses"][0]["state"]["terminated"]["exitCode"]) == ("Failed", 7)


def test_a_deleted_pod_terminates_for_a_while(cluster: ApiServer, kubelet: FakeKubelet) -> None:
    """It holds its GPUs until it is gone."""
    namespace = cluster.namespace()
    path = f"/api/v1/namespaces/{namespace}/pods"
    kubelet.add_node("node-1", gpus=1)
    kubelet.stop_seconds = 4.0
    cluster.request("POST", path, pod("old", gpus=1))
    kubelet.wait_running(namespace, "old")
    cluster.request("DELETE", f"{path}/old")
    cluster.request("POST", path, pod("new", gpus=1))
    assert [each["metadata"]["name"] for each in kubelet.pods(namespace)] == ["new", "old"]
    kubelet.wait_running(namespace, "new")
    assert [each["metadata"]["name"] for each in kubelet.pods(namespace)] == ["new"]


def test_what_a_job_owns_goes_with_it(cluster: ApiServer, kubelet: FakeKubelet) -> None:
    """Also what is made after the job went; what belongs to others stays."""
    namespace = cluster.namespace()
    kubelet.add_node("node-1", gpus=1)
    path = f"{JOBS}/namespaces/{namespace}/adaptivetrainingjobs"
    made = cluster.request("POST", path, job("short"))["metadata"]
    owner = {"apiVersion": "espalier.dev/v1alpha1", "kind": "AdaptiveTrainingJob", "name": "short", "uid": made["uid"]}
    pods = f"/api/v1/namespaces/{namespace}/pods"
    cluster.request("POST", pods, pod("own", owner=owner))
    cluster.request("POST", pods, pod("foreign"))
    kubelet.wait_running(namespace, "own")
    cluster.request("DELETE", f"{path}/short")
    config_map = {"metadata": {"name": "late", "ownerReferences": [owner]}}
    cluster.request("POST", f"/api/v1/namespaces/{namespace}/configmaps", config_map)
    kubelet.wait_for("its pod is gone", lambda: [p["metadata"]["name"] for p in kubelet.pods(namespace)] == ["foreign"])
    config_maps = f"/api/v1/namespaces/{namespace}/configmaps"
    kubelet.wait_for("its late ConfigMap is gone", lambda: not cluster.request("GET", config_maps)["items"])


def test_pods_go_on_when_the_server_was_away(cluster: ApiServer, kubelet: FakeKubelet) -> None:
    """The kubelet takes its watches up again; an image that is missing is said as a kubelet says it."""
    namespace = cluster.namespace()
    kubelet.add_node("node-1", gpus=1)
    kubelet.missing_images.add("gone:dev")
    cluster.stop()
    cluster.start()
    path = f"/api/v1/namespaces/{namespace}/pods"
    body = pod("late")
    cluster.request("POST", path, body)
    kubelet.wait_running(namespace, "late")
    missing = pod("missing")
    missing["spec"]["containers"][0]["image"] = "gone:dev"  # type: ignore[index]
    cluster.request("POST", path, missing)

    def reason() -> str:
        statuses = cluster.request("GET", f"{path}/missing")["status"].get("containerStatuses", ())
        return next((str(each["state"]["waiting"]["reason"]) for each in statuses), "")

    assert kubelet.wait_for("it waits for its image", reason) == "ImagePullBackOff"
