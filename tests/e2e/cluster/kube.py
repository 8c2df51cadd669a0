"""A real cluster as a person sees it: through kubectl, with patience that has a limit."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

GPU = "nvidia.com/gpu"
SYSTEM = "espalier-system"
Found = TypeVar("Found")


class ClusterError(AssertionError):
    """kubectl refused, or what was waited for did not come."""


def kubectl(*arguments: str, text: str | None = None, timeout: float = 60) -> str:
    """Run kubectl and return its stdout; `text` is its stdin."""
    result = subprocess.run(["kubectl", *arguments], input=text, capture_output=True, text=True, timeout=timeout)
    if result.returncode != 0:
        raise ClusterError(f"kubectl {' '.join(arguments)}: {result.stderr.strip()}")
    return result.stdout


def get(*arguments: str) -> dict[str, Any]:
    """Return what `kubectl get` says as JSON."""
    found: dict[str, Any] = json.loads(kubectl("get", *arguments, "--output=json"))
    return found


def wait_for(what: str, look: Callable[[], Found | None], seconds: float = 60, every: float = 0.3) -> Found:
    """Return the first answer of `look` that is true; `ClusterError` after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > deadline:
            raise ClusterError(f"{what}: not within {seconds:g} s")
        time.sleep(every)


@dataclass
class Space:
    """A namespace of a test's own."""

    name: str

    def apply(self, *manifests: Mapping[str, Any] | str) -> None:
        """Apply manifests: mappings, or the text of a file."""
        for manifest in manifests:
            text = manifest if isinstance(manifest, str) else json.dumps(manifest)
            kubectl("apply", "--namespace", self.name, "--filename=-", text=text)

    def job(self, name: str) -> dict[str, Any]:
        """Return a job."""
        return get("adaptivetrainingjob", name, "--namespace", self.name)

    def status(self, name: str) -> dict[str, Any]:
        """Return a job's status, empty while it has none."""
        status: dict[str, Any] = self.job(name).get("status", {})
        return status

    def condition(self, name: str, kind: str) -> dict[str, Any]:
        """Return one condition of a job, empty where it is not listed."""
        return next((entry for entry in self.status(name).get("conditions", ()) if entry["type"] == kind), {})

    def holds(self, name: str, kind: str) -> bool:
        """Return whether a condition of a job is True."""
        return self.condition(name, kind).get("status") == "True"

    def wait_condition(self, name: str, kind: str, seconds: float = 90) -> dict[str, Any]:
        """Wait until a condition is True and return it."""

        def look() -> dict[str, Any] | None:
            found = self.condition(name, kind)
            return found if found.get("status") == "True" else None

        try:
            return wait_for(f"{name} {kind}", look, seconds)
        except ClusterError as error:
            raise ClusterError(f"{error}; its status: {json.dumps(self.status(name), indent=1)}") from None

    def wait_extra(self, name: str, extra: int, seconds: float = 60) -> None:
        """Wait until a job is lent `extra` extra workers."""
        try:
            wait_for(
                f"{name} has {extra} extra workers",
                lambda: self.status(name).get("scheduling", {}).get("extra") == extra,
                seconds,
            )
        except ClusterError as error:
            raise ClusterError(f"{error}; its status: {json.dumps(self.status(name), indent=1)}") from None

    def pods(self, job: str, role: str | None = None) -> list[dict[str, Any]]:
        """Return the pods of a job, those of `role` alone if it is given."""
        selector = f"espalier.dev/job={job}" + (f",espalier.dev/role={role}" if role else "")
        found: list[dict[str, Any]] = get("pods", "--namespace", self.name, "--selector", selector)["items"]
        return found

    def leader(self, job: str) -> dict[str, Any] | None:
        """Return the leader's pod that runs and is not on its way out."""
        for pod in self.pods(job, "base"):
            alive = pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]
            if alive and pod["metadata"]["labels"]["espalier.dev/index"] == "0":
                return pod
        return None

    def events(self, reason: str | None = None) -> list[dict[str, Any]]:
        """Return the Events of the namespace, those with `reason` alone if it is given."""
        found = get("events", "--namespace", self.name)["items"]
        return [event for event in found if reason in (None, event["reason"])]

    def report(self, job: str) -> dict[str, Any]:
        """Return what the leader reported last, empty where it has not."""
        data = get("configmap", f"{job}-report", "--namespace", self.name).get("data") or {}
        report: dict[str, Any] = json.loads(data.get("report.json", "{}"))
        return report


@dataclass
class Nodes:
    """The nodes for workers, whose GPUs the tests set."""

    names: list[str] = field(default_factory=list)

    @classmethod
    def found(cls) -> Nodes:
        """Return the nodes that are not the control plane's."""
        items = get("nodes")["items"]
        return cls([item["metadata"]["name"] for item in items if "control-plane" not in item["metadata"]["name"]])

    def set_gpus(self, *counts: int) -> None:
        """Give the first node the first count, and so on; the others none."""
        for name, count in zip(self.names, [*counts, *[0] * len(self.names)], strict=False):
            gpus(name, count)

    def ready(self, name: str) -> bool:
        """Return whether a node is."""
        conditions = get("node", name)["status"]["conditions"]
        return any(entry["type"] == "Ready" and entry["status"] == "True" for entry in conditions)

    @contextlib.contextmanager
    def frozen(self, name: str) -> Iterator[None]:
        """Freeze a node: its container stands still, so that it answers nobody."""
        subprocess.run(["docker", "pause", name], check=True, capture_output=True, timeout=60)
        try:
            yield
        finally:
            subprocess.run(["docker", "unpause", name], check=True, capture_output=True, timeout=60)
            wait_for(f"{name} Ready again", lambda: self.ready(name), 120)


def gpus(node: str, count: int) -> None:
    """Pretend that `node` has `count` GPUs."""
    value = {"capacity": {GPU: str(count)}, "allocatable": {GPU: str(count)}}
    kubectl("patch", "node", node, "--subresource=status", "--type=merge", "--patch", json.dumps({"status": value}))


def digits(name: str, *, budget: float, seconds: float = 2, **spec: Any) -> dict[str, Any]:
    """Return a job like the example's, with short notices; `spec` replaces fields of it."""
    base = {
        "timeBudgetSeconds": budget,
        "minReplicas": 1,
        "maxReplicas": 2,
        "preemption": {"noticeSeconds": 10, "cooldownSeconds": 1, "minRuntimeSeconds": seconds},
        "adaptation": {"mode": "Auto", "maxAdaptations": 3, "decisionTimeoutSeconds": 5},
        "checkpoint": {"path": "/checkpoints", "intervalSeconds": 2},
    }
    return {
        "apiVersion": "espalier.dev/v1alpha1",
        "kind": "AdaptiveTrainingJob",
        "metadata": {"name": name},
        "spec": {**base, **spec},
    }
