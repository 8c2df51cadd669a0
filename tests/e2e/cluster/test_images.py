"""The images as a cluster runs them: restricted, small, without installers, quick to start and to end."""

from __future__ import annotations

import json
from typing import Any

import pytest
from kube import ClusterError, Space, digits, get, kubectl, wait_for

pytestmark = pytest.mark.without("operator", "agent")
PARTS = ["operator", "trainer", "agent"]
LARGEST_OPERATOR = 250e6

LOOK = """
import importlib.util, json, os, pkgutil, shutil, sys, importlib.metadata as metadata
__import__(sys.argv[1])
def cached(module):
    spec = getattr(module, "__spec__", None)
    source = spec is not None and spec.cached and (spec.origin or "").endswith(".py")
    return not source or os.path.exists(spec.cached)
def writable(path):
    try:
        open(os.path.join(path, "try"), "w").close()
    except OSError:
        return False
    return True
found = {
    "uid": os.getuid(),
    "tools": [each for each in ("gcc", "cc", "c++", "pip", "pip3", "uv", "make") if shutil.which(each)],
    "pip": importlib.util.find_spec("pip") is not None,
    "uncompiled": sorted(name for name, module in list(sys.modules.items()) if not cached(module)),
    "writable": [path for path in ("/", "/app", "/venv", "/tmp", "/etc") if writable(path)],
    "packages": sorted(each.name for each in metadata.distributions()),
}
exec(sys.argv[2])
print(json.dumps(found))
"""


def pod(part: str, name: str, **container: Any) -> dict[str, Any]:
    """Return a pod of an image under restricted security."""
    security = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [
                {
                    "name": part,
                    "image": f"localhost/espalier-{part}:dev",
                    "imagePullPolicy": "IfNotPresent",
                    "securityContext": security,
                    "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
                    **container,
                }
            ],
            "volumes": [{"name": "tmp", "emptyDir": {}}],
        },
    }


def ended(space: Space, name: str, seconds: float = 90) -> str:
    """Wait for a pod's end and return its log; `ClusterError` with the log where it failed."""
    last = wait_for(f"{name} ends", lambda: {"Succeeded", "Failed"} & {space.phase(name)}, seconds)
    log = kubectl("logs", name, "--namespace", space.name)
    if last != {"Succeeded"}:
        raise ClusterError(f"{name} failed: {log}")
    return log


LABORATORY = {
    "trainer": "from espalier_trainer.training.execution import rewriter; rewriter()",
    "agent": "import espalier_lab.scheduling.product.__main__",
}
"""What an image uses of the laboratory."""


@pytest.mark.parametrize("part", PARTS)
def test_an_image_is_restricted_and_holds_no_more_than_it_runs(space: Space, part: str) -> None:
    command = ["python", "-c", LOOK, f"espalier_{part}.__main__", LABORATORY.get(part, "")]
    space.apply(pod(part, "look", command=command))
    found = json.loads(ended(space, "look").splitlines()[-1])
    assert found["uid"] == 65532
    assert found["tools"] == []
    assert not found["pip"]
    assert found["writable"] == ["/tmp"]
    assert found["uncompiled"] in ([], ["__main__"])
    # The policy server in the agent's image uses what policies of the operator are made of.
    others = {f"espalier-{each}" for each in PARTS if each != part} - (
        {"espalier-operator"} if part == "agent" else set()
    )
    assert not others & set(found["packages"])
    assert {"espalier-core", f"espalier-{part}"} <= set(found["packages"])
    assert ("torch" in found["packages"]) == (part != "operator")
    assert "scikit-learn" not in found["packages"], "only learners and tests need it"
    if part == "operator":
        sizes = {
            name: image["sizeBytes"]
            for node in get("nodes")["items"]
            for image in node["status"]["images"]
            for name in image.get("names") or ()  # one that lost its name to a newer one has none
        }
        assert sizes["localhost/espalier-operator:dev"] <= LARGEST_OPERATOR


def lasting(part: str, name: str) -> dict[str, Any]:
    """Return a pod that runs until it is ended: a service, or a worker that waits."""
    manifest = pod(part, name)
    spec = manifest["spec"]
    if part == "operator":  # an account without rights: it keeps asking for the lease
        spec["automountServiceAccountToken"] = True
    if part == "trainer":
        job = digits("waits", budget=60, training={"model": {"name": "digits"}})  # the paced one is not in this pod
        manifest["metadata"]["annotations"] = {"job": json.dumps(job)}
        item = {"path": "job.json", "fieldRef": {"fieldPath": "metadata.annotations['job']"}}
        spec["volumes"].append({"name": "job", "downwardAPI": {"items": [item]}})
        (container,) = spec["containers"]
        container["volumeMounts"].append({"name": "job", "mountPath": "/job"})
        container["env"] = [
            {"name": "ESPALIER_WORKER_ROLE", "value": "extra"},
            {"name": "ESPALIER_JOB_FILE", "value": "/job/job.json"},
        ]
    return manifest


HELD = "espalier.dev/end-not-read"
"""A finalizer: a pod that is deleted stays until its exit code is known."""
KILLED = 137


def ended_containers(space: Space, name: str) -> list[dict[str, Any]]:
    """Return how the containers of a pod ended, those that have."""
    containers = get("pods", name, namespace=space.name)["status"]["containerStatuses"]
    return [ended for each in containers if (ended := each["state"].get("terminated")) is not None]


SAYS = {"operator": "espalier-operator", "trainer": "waits", "agent": "startup complete"}


@pytest.mark.parametrize("part", PARTS)
def test_sigterm_reaches_python(space: Space, part: str) -> None:
    """The first process of a container gets no signal that it does not handle, and imports take seconds."""
    pods = ("importing", "running")
    for name in pods:
        manifest = lasting(part, name)
        manifest["metadata"]["finalizers"] = [HELD]
        space.apply(manifest)
    try:
        for name in pods:
            wait_for("the container runs", lambda: space.phase(name) != "Pending", every=0.1)  # noqa: B023
            if name == "running":
                log = ("logs", name, "--namespace", space.name)
                wait_for(f"it says {SAYS[part]!r}", lambda: SAYS[part] in kubectl(*log))  # noqa: B023
            assert space.phase(name) == "Running", kubectl("logs", name, "--namespace", space.name)
            kubectl("delete", "pod", name, "--namespace", space.name, "--grace-period=60", "--wait=false")
            (container,) = wait_for("its container has ended", lambda: ended_containers(space, name))  # noqa: B023
            assert container["exitCode"] != KILLED, "it was killed after its grace period"
    finally:
        released = json.dumps({"metadata": {"finalizers": None}})
        for name in pods:
            kubectl("patch", "pod", name, "--namespace", space.name, "--type=merge", f"--patch={released}")
