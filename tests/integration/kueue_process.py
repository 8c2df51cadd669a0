"""A real Kueue against the API server of the tests, without its webhooks: `KueueProcess`."""

from __future__ import annotations

import base64
import json
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import httpx
from apiserver import ApiServer, ServerError
from ruamel.yaml import YAML

from espalier_core.files.documents import write_bytes_atomically
from ports import free_port
from tools import tool

KUEUE: Final = "/apis/kueue.x-k8s.io/v1beta2"
KINDS: Final = ("workloads", "localqueues", "clusterqueues", "cohorts", "resourceflavors", "workloadpriorityclasses")
"""The kinds of Kueue whose objects are deleted with a process, those first that others need."""
_NAMESPACE = "kueue-system"
_SECRET = f"/api/v1/namespaces/{_NAMESPACE}/secrets/kueue-webhook-server-cert"
_READY_SECONDS = 60.0


def kueue_folder() -> Path:
    """Return the folder with Kueue's program and its manifests (`hack/kueue`)."""
    return tool("kueue", "no Kueue to test with; hack/kueue builds it")


def definitions(kueue: Path, folder: Path) -> Path:
    """Write Kueue's CRDs into `folder`, for an API server that its webhooks do not serve; return the folder.

    Only the stored version is left. Kueue starts only once it has put its certificate into their conversion webhooks,
    which nobody calls then.
    """
    yaml = YAML(typ="safe", pure=True)
    for file in sorted((kueue / "module" / "config" / "components" / "crd" / "bases").glob("*.yaml")):
        definition = yaml.load(file)
        spec = definition["spec"]
        spec["versions"] = [version for version in spec["versions"] if version["storage"]]
        webhook = {"clientConfig": {"url": "https://127.0.0.1:1/convert"}, "conversionReviewVersions": ["v1"]}
        spec["conversion"] = {"strategy": "Webhook", "webhook": webhook}
        (folder / file.name).write_text(json.dumps(definition))  # JSON is YAML
    return folder


class KueueProcess:
    """Kueue's manager, with all rights; a context manager that ends it and deletes the objects of its kinds.

    Nothing makes pods of jobs here, and without webhooks nothing suspends a new batch Job: strangers are Workloads.
    """

    def __init__(self, kueue: Path, server: ApiServer, directory: Path, **configuration: Any) -> None:
        """`directory` takes its files and its log; `configuration`: fields of Kueue's configuration."""
        self._binary, self._server, self._directory = kueue / "kueue", server, directory
        self._certificates, self._health = directory / "certificates", f"127.0.0.1:{free_port()}"
        self._process: subprocess.Popen[bytes] | None = None
        settings = {
            "apiVersion": "config.kueue.x-k8s.io/v1beta2",
            "kind": "Configuration",
            "health": {"healthProbeBindAddress": self._health},
            "metrics": {"bindAddress": "0"},
            "webhook": {"port": free_port(), "certDir": str(self._certificates)},
            "leaderElection": {"leaderElect": False},
            "clientConnection": {"qps": 500, "burst": 1000},
            "integrations": {
                "frameworks": ["batch/job"],
                "externalFrameworks": ["AdaptiveTrainingJob.v1alpha1.espalier.dev"],
            },
            **configuration,
        }
        (directory / "configuration.json").write_text(json.dumps(settings))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()
        self.clear()

    def start(self) -> None:
        """Start it; return when it is ready."""
        for path, body in (
            ("/api/v1/namespaces", {"metadata": {"name": _NAMESPACE}}),
            (_SECRET.rpartition("/")[0], {"metadata": {"name": _SECRET.rpartition("/")[2]}}),
        ):
            answer = self._server.api.post(path, json=body)
            assert answer.status_code in (201, 409), answer.text
        command = [
            str(self._binary),
            f"--config={self._directory / 'configuration.json'}",
            f"--kubeconfig={self._server.kubeconfig}",
            "--feature-gates=VisibilityOnDemand=false",
            "--zap-log-level=3",
        ]
        with (self._directory / "kueue.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + _READY_SECONDS
        while not (self._mount_certificates() and self._is_ready()):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise ServerError(f"Kueue is not ready:\n{(self._directory / 'kueue.log').read_text()[-4000:]}")
            time.sleep(0.05)

    def stop(self) -> None:
        """End it; its objects stay."""
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(20)

    def clear(self) -> None:
        """Delete all objects of Kueue's kinds, although it does not run."""
        for kind in KINDS:
            for item in self._server.request("GET", f"{KUEUE}/{kind}")["items"]:
                name, namespace = item["metadata"]["name"], item["metadata"].get("namespace")
                path = f"{KUEUE}/namespaces/{namespace}/{kind}/{name}" if namespace else f"{KUEUE}/{kind}/{name}"
                if item["metadata"].get("finalizers"):
                    self._server.request("PATCH", path, {"metadata": {"finalizers": None}})
                self._server.api.delete(path)

    def _mount_certificates(self) -> bool:
        """Do what a kubelet does: put the secret in which Kueue keeps its certificate into files."""
        data = self._server.request("GET", _SECRET).get("data") or {}
        self._certificates.mkdir(exist_ok=True)
        for name, text in data.items():
            # Never half written: Kueue gives up where a certificate is empty.
            write_bytes_atomically(self._certificates / name, base64.b64decode(text))
        return "tls.crt" in data

    def _is_ready(self) -> bool:
        try:
            return httpx.get(f"http://{self._health}/readyz", timeout=5, trust_env=False).status_code == 200
        except httpx.TransportError:
            return False

    # ---- what administrators make

    def make_flavor(self, name: str = "gpus", **spec: Any) -> None:
        """Make a ResourceFlavor; `spec`: nodeLabels, tolerations."""
        self._make("resourceflavors", "ResourceFlavor", name, spec)

    def make_queue(self, namespace: str, gpus: int, name: str = "team", flavor: str = "gpus", **spec: Any) -> None:
        """Make a ClusterQueue with a quota of GPUs, and a LocalQueue of that name; `spec`: cohortName, preemption."""
        quota = {"name": flavor, "resources": [{"name": "nvidia.com/gpu", "nominalQuota": gpus}]}
        groups = [{"coveredResources": ["nvidia.com/gpu"], "flavors": [quota]}]
        self._make("clusterqueues", "ClusterQueue", name, {"namespaceSelector": {}, "resourceGroups": groups, **spec})
        self._make(f"namespaces/{namespace}/localqueues", "LocalQueue", name, {"clusterQueue": name})

    def make_workload(self, namespace: str, name: str, gpus: int = 1, queue: str = "team", **spec: Any) -> None:
        """Make the Workload of a stranger's job; `spec`: priority."""
        container = {"name": "main", "image": "none", "resources": {"requests": {"nvidia.com/gpu": str(gpus)}}}
        template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
        pods = [{"name": "main", "count": 1, "template": template}]
        body = {"queueName": queue, "active": True, "podSets": pods, **spec}
        self._make(f"namespaces/{namespace}/workloads", "Workload", name, body)

    def condition(self, namespace: str, workload: str, kind: str) -> dict[str, Any]:
        """Return one condition of a Workload, empty where it has none of this kind."""
        found = self._server.request("GET", f"{KUEUE}/namespaces/{namespace}/workloads/{workload}")
        conditions = found.get("status", {}).get("conditions", ())
        return next((dict(each) for each in conditions if each["type"] == kind), {})

    def _make(self, path: str, kind: str, name: str, spec: dict[str, Any]) -> None:
        api = "kueue.x-k8s.io/v1beta2"
        body = {"apiVersion": api, "kind": kind, "metadata": {"name": name}, "spec": spec}
        self._server.request("POST", f"{KUEUE}/{path}", body)
