"""A real cluster: changed through kubectl, read from the API server, waited for with a limit.

Reading goes through one `kubectl proxy`: tests poll, and a kubectl of its own for each look would take a core from what
is tested.
"""

from __future__ import annotations

import atexit
import contextlib
import copy
import functools
import json
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx
import yaml
from paced_models import MODELS, MOUNT, PACED_DIGITS, with_models

from waiting import PATIENCE, until

PROJECT = Path(__file__).parents[3]
GPU = "nvidia.com/gpu"
GPU_TYPE = "nvidia.com/gpu.product"
SYSTEM = "espalier-system"
_GROUPS = {
    "deployments": "apis/apps/v1",
    "adaptivetrainingjobs": "apis/espalier.dev/v1alpha1",
    "queues": "apis/espalier.dev/v1alpha1",
    "servicemonitors": "apis/monitoring.coreos.com/v1",
    "podmonitors": "apis/monitoring.coreos.com/v1",
    "prometheusrules": "apis/monitoring.coreos.com/v1",
}
_TRAINER = {"spec": {"containers": [{"name": "trainer", "resources": {"limits": {GPU: 1}}}]}}
_WAIT = "trap 'exit 143' TERM; while :; do sleep 0.2; done"
Found = TypeVar("Found")


class ClusterError(AssertionError):
    """kubectl refused, or what was waited for did not come."""


def kubectl(*arguments: str, text: str | None = None, timeout: float = 60) -> str:
    """Run kubectl and return its stdout; `text` is its stdin."""
    result = subprocess.run(["kubectl", *arguments], input=text, capture_output=True, text=True, timeout=timeout)
    if result.returncode != 0:
        raise ClusterError(f"kubectl {' '.join(arguments)}: {result.stderr.strip()}")
    return result.stdout


def run(*command: str, folder: Path = PROJECT, text: str | None = None) -> str:
    """Run a command and return its stdout; `text` is its stdin."""
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, input=text)
    assert ended.returncode == 0, f"{command}\n{ended.stdout}{ended.stderr}"
    return ended.stdout


def helm(*arguments: str) -> str:
    """Run helm on the installation."""
    return run(run("hack/helm").strip(), *arguments, "--namespace", SYSTEM)


@functools.cache
def _server() -> httpx.Client:
    """Return a client of the API server, through a `kubectl proxy` that ends with this process."""
    command = ["kubectl", "proxy", "--port=0"]
    proxy = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    atexit.register(proxy.terminate)
    assert proxy.stdout is not None
    address = proxy.stdout.readline().rpartition(" ")[2].strip()  # Starting to serve on 127.0.0.1:40213
    return httpx.Client(base_url=f"http://{address}", timeout=30, trust_env=False)


def get_raw(path: str) -> str:
    """Return what the API server answers to GET; `ClusterError` with its words where it refuses."""
    answer = _server().get(path)
    if answer.is_error:
        raise ClusterError(f"GET {path}: {answer.status_code} {answer.text}")
    return answer.text


def get(resource: str, name: str = "", *, namespace: str = "", selector: str = "") -> dict[str, Any]:
    """Return an object, or without a name the list of them; `resource` is the plural."""
    path = "/".join(
        part
        for part in (_GROUPS.get(resource, "api/v1"), f"namespaces/{namespace}" if namespace else "", resource, name)
        if part
    )
    found: dict[str, Any] = json.loads(get_raw(f"/{path}" + (f"?labelSelector={selector}" if selector else "")))
    return found


def wait_for(what: str, look: Callable[[], Found | None], seconds: float = PATIENCE, every: float = 0.3) -> Found:
    """Return the first answer of `look` that is true; `AssertionError` after `seconds`."""
    return until(look, what, seconds, every)


@dataclass
class Space:
    """A namespace for one test, and the type of the GPUs that the test may use."""

    name: str
    gpu_type: str = ""

    def apply(self, *manifests: Mapping[str, Any] | str) -> None:
        """Apply manifests: mappings, or the text of a file. Jobs and pods stay on the test's GPUs."""
        items = [yaml.safe_load(each) if isinstance(each, str) else each for each in manifests]
        if MOUNT in json.dumps(items):
            items.insert(0, MODELS)
        typed = {"apiVersion": "v1", "kind": "List", "items": [_on_type(item, self.gpu_type) for item in items]}
        kubectl("apply", "--namespace", self.name, "--filename=-", text=json.dumps(typed))

    def job(self, name: str) -> dict[str, Any]:
        """Return a job."""
        return get("adaptivetrainingjobs", name, namespace=self.name)

    def status(self, name: str) -> dict[str, Any]:
        """Return a job's status, empty while it has none."""
        status: dict[str, Any] = self.job(name).get("status", {})
        return status

    def condition(self, name: str, kind: str) -> dict[str, Any]:
        """Return one condition of a job, empty where it is not listed."""
        return next((entry for entry in self.status(name).get("conditions", ()) if entry["type"] == kind), {})

    def wait_condition(self, name: str, kind: str) -> dict[str, Any]:
        """Wait until a condition is True and return it."""

        def look() -> dict[str, Any] | None:
            found = self.condition(name, kind)
            return found if found.get("status") == "True" else None

        return self._wait(name, kind, look)

    def wait_extra(self, name: str, extra: int) -> None:
        """Wait until a job is lent `extra` extra workers."""
        has_extra = f"has {extra} extra workers"
        self._wait(name, has_extra, lambda: self.status(name).get("scheduling", {}).get("extra") == extra)

    def _wait(self, name: str, what: str, look: Callable[[], Found | None]) -> Found:
        try:
            return wait_for(f"{name} {what}", look)
        except ClusterError as error:
            raise ClusterError(f"{error}; its status: {json.dumps(self.status(name), indent=1)}") from None

    def pods(self, job: str, role: str | None = None) -> list[dict[str, Any]]:
        """Return the pods of a job, those of `role` alone if it is given."""
        selector = f"espalier.dev/job={job}" + (f",espalier.dev/role={role}" if role else "")
        found: list[dict[str, Any]] = get("pods", namespace=self.name, selector=selector)["items"]
        return found

    def phase(self, pod: str) -> str:
        """Return a pod's phase."""
        return str(get("pods", pod, namespace=self.name)["status"]["phase"])

    def leader(self, job: str) -> dict[str, Any] | None:
        """Return the leader's pod that runs and is not on its way out."""
        for pod in self.pods(job, "base"):
            alive = pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]
            if alive and pod["metadata"]["labels"]["espalier.dev/index"] == "0":
                return pod
        return None

    def events(self, reason: str | None = None) -> list[dict[str, Any]]:
        """Return the Events of the namespace, those with `reason` alone if it is given."""
        found = get("events", namespace=self.name)["items"]
        return [event for event in found if reason in (None, event["reason"])]

    def trains_on(self, job: str, steps: int = 50) -> None:
        """Wait until the leader has reported `steps` more steps."""
        before = int(self.report(job).get("step", 0))
        wait_for(f"{job} trains on", lambda: self.report(job).get("step", 0) > before + steps)

    def training(self, job: str) -> int:
        """Return how many workers train together, as the leader reported."""
        metrics = {entry["name"]: entry["value"] for entry in self.report(job).get("metrics", ())}
        return int(metrics.get("workers", 1))

    def report(self, job: str) -> dict[str, Any]:
        """Return what the leader reported last, empty where it has not."""
        data = get("configmaps", f"{job}-report", namespace=self.name).get("data") or {}
        report: dict[str, Any] = json.loads(data.get("report.json", "{}"))
        return report


def _on_type(manifest: Mapping[str, Any], gpu_type: str) -> dict[str, Any]:
    """Return a copy of a manifest in which a job's or a pod's template selects the nodes of that type; '': as it is."""
    found: dict[str, Any] = json.loads(json.dumps(manifest))
    if not gpu_type or found["kind"] not in ("AdaptiveTrainingJob", "Pod"):
        return found
    spec = found["spec"]
    if found["kind"] == "AdaptiveTrainingJob":
        template = spec.setdefault("template", copy.deepcopy(_TRAINER))
        spec = template["spec"]
    spec.setdefault("nodeSelector", {})[GPU_TYPE] = gpu_type
    return found


@dataclass
class Nodes:
    """The worker nodes that a test has for itself, whose GPUs it sets."""

    names: list[str] = field(default_factory=list)
    gpu_type: str = ""

    def set_gpus(self, *counts: int) -> None:
        """Give the first node the first count, and so on; the others none."""
        assert len(counts) <= len(self.names), "mark the test with how many nodes it needs"
        for name, count in zip(self.names, [*counts, *[0] * len(self.names)], strict=False):
            gpus(name, count)

    def ready(self, name: str) -> bool:
        """Return whether a node is."""
        conditions = get("nodes", name)["status"]["conditions"]
        return any(entry["type"] == "Ready" and entry["status"] == "True" for entry in conditions)

    @contextlib.contextmanager
    def frozen(self, name: str) -> Iterator[None]:
        """Freeze a node: its container stands still, so that it answers nobody."""
        # A process that waits for a disk cannot be frozen at once.
        wait_for(f"{name} is frozen", lambda: _docker("pause", name), 20)
        try:
            yield
        finally:
            subprocess.run(["docker", "unpause", name], check=True, capture_output=True, timeout=60)
            wait_for(f"{name} Ready again", lambda: self.ready(name))


def _docker(*arguments: str) -> bool:
    """Return whether the command did what it should."""
    return subprocess.run(["docker", *arguments], check=False, capture_output=True, timeout=60).returncode == 0


def workers() -> dict[str, int]:
    """Return the nodes that are not the control plane's, and how many GPUs they have."""
    return {
        item["metadata"]["name"]: int(item["status"]["allocatable"].get(GPU, 0))
        for item in get("nodes")["items"]
        if "node-role.kubernetes.io/control-plane" not in item["metadata"]["labels"]
    }


def pods_of(part: str) -> list[dict[str, Any]]:
    """Return the pods of the operator or the agent that run."""
    pods = get("pods", namespace=SYSTEM, selector=f"app.kubernetes.io/name=espalier-{part}")["items"]
    return [pod for pod in pods if pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]]


def operator_node() -> str:
    """Return the node that the operator runs on."""
    return str(pods_of("operator")[0]["spec"]["nodeName"])


def set_type(node: str, gpu_type: str) -> None:
    """Pretend that the GPUs of `node` are of that type; '' for none."""
    kubectl("label", "node", node, f"{GPU_TYPE}={gpu_type}" if gpu_type else f"{GPU_TYPE}-", "--overwrite")


def gpus(node: str, count: int) -> None:
    """Pretend that `node` has `count` GPUs. Its kubelet would write that some seconds later."""
    devices(node, "gpus", str(count))
    value = {"capacity": {GPU: str(count)}, "allocatable": {GPU: str(count)}}
    kubectl("patch", "node", node, "--subresource=status", "--type=merge", "--patch", json.dumps({"status": value}))


def devices(node: str, *words: str) -> None:
    """Tell the device plugin of a node how its fake GPUs fare (`hack/device-plugin/plugin.py`)."""

    def told() -> bool:
        pods = get("pods", namespace="kube-system", selector="app=fake-gpus")["items"]
        plugin = next((pod["metadata"]["name"] for pod in pods if pod["spec"].get("nodeName") == node), None)
        if plugin is None:
            return False  # the node has just come back, and its pod is made
        try:
            kubectl("exec", "--namespace=kube-system", plugin, "--", "/venv/bin/python", "/plugin.py", "tell", *words)
        except ClusterError as error:
            if "unable to upgrade connection" in str(error) or "container not found" in str(error):
                return False  # the pod starts
            raise
        return True

    wait_for(f"the device plugin of {node} is told", told)


def stranger(image: str, **spec: Any) -> dict[str, Any]:
    """Return a pod called stranger that belongs to no job and wants a GPU; `spec` adds fields."""
    container = {
        "name": "stranger",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sleep", "600"],
        "resources": {"limits": {GPU: "1"}},
    }
    base = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "stranger"}, "spec": {**base, **spec}}


def digits(
    name: str,
    *,
    budget: float,
    seconds: float = 2,
    template: Mapping[str, Any] = _TRAINER,
    training: Mapping[str, Any] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    """Return a job like the example's, with short notices and a pause after each step; `spec` replaces fields of it."""
    base = {
        "timeBudgetSeconds": budget,
        "minReplicas": 1,
        "maxReplicas": 2,
        "preemption": {"noticeSeconds": 10, "cooldownSeconds": 1, "minRuntimeSeconds": seconds},
        "adaptation": {"mode": "Auto", "maxAdaptations": 3, "decisionTimeoutSeconds": 5},
        "checkpoint": {"path": "/checkpoints", "intervalSeconds": 2},
        "training": {"model": PACED_DIGITS, **(training or {})},
        "template": with_models(template),
    }
    return {
        "apiVersion": "espalier.dev/v1alpha1",
        "kind": "AdaptiveTrainingJob",
        "metadata": {"name": name},
        "spec": {**base, **spec},
    }


def waiting(name: str, *, gpus: int = 1, **spec: Any) -> dict[str, Any]:
    """Return a job whose workers wait to be stopped, and compute nothing; the base has so many of one GPU each."""
    container = {"name": "trainer", "command": ["sh", "-c", _WAIT], "resources": {"limits": {GPU: 1}}}
    base = {"timeBudgetSeconds": 300, "minReplicas": gpus, "maxReplicas": gpus, "program": {}}
    return {
        "apiVersion": "espalier.dev/v1alpha1",
        "kind": "AdaptiveTrainingJob",
        "metadata": {"name": name},
        "spec": {**base, "template": {"spec": {"containers": [container]}}, **spec},
    }


def shared_folder(space: Space, node: str) -> None:
    """Make a folder on `node` that pods of any user may write to: what a volume of the cluster would be."""
    image = pods_of("operator")[0]["spec"]["containers"][0]["image"]
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "folder"},
        "spec": {
            "restartPolicy": "Never",
            "nodeName": node,
            "containers": [
                {
                    "name": "folder",
                    "image": image,
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["chmod", "0777", "/shared"],
                    "securityContext": {"runAsUser": 0},
                    "volumeMounts": [{"name": "shared", "mountPath": "/shared"}],
                }
            ],
            "volumes": [host_folder(space)],
        },
    }
    space.apply(pod)
    wait_for("the folder is made", lambda: space.phase("folder") == "Succeeded")


def host_folder(space: Space) -> dict[str, Any]:
    """Return the volume of that folder."""
    path = f"/var/lib/espalier-e2e/{space.name}"
    return {"name": "shared", "hostPath": {"path": path, "type": "DirectoryOrCreate"}}
