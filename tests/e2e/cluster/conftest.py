"""A cluster with Espalier in it, for tests that look at it as its users do.

Any cluster will do: KUBECONFIG names it, Espalier is installed (`make cluster` does both), nodes are docker containers
of their own names (as kind's are). The tests change the nodes' GPUs and put them back.
"""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from kube import SYSTEM, ClusterError, Nodes, Space, get, gpus, kubectl, wait_for

PROJECT = Path(__file__).parents[3]


@pytest.fixture(scope="session")
def installed() -> None:
    """See to it that there is a cluster in which Espalier runs; skip where there is none, fail in CI."""
    try:
        kubectl("--namespace", SYSTEM, "rollout", "status", "deployment/espalier-operator", "--timeout=60s", timeout=90)
        kubectl("--namespace", SYSTEM, "rollout", "status", "deployment/espalier-agent", "--timeout=60s", timeout=90)
    except (ClusterError, OSError, subprocess.TimeoutExpired) as error:
        text = f'no cluster with Espalier in it: {error}; try: make cluster; eval "$(hack/cluster env)"'
        if os.environ.get("CI"):
            pytest.fail(text, pytrace=False)
        pytest.skip(text)


@pytest.fixture
def nodes(installed: None) -> Iterator[Nodes]:
    """Give the worker nodes, and give them back the GPUs they had."""
    found = Nodes.found()
    assert len(found.names) >= 2, "two worker nodes are needed"
    had = {
        item["metadata"]["name"]: int(item["status"]["allocatable"].get("nvidia.com/gpu", 0))
        for item in get("nodes")["items"]
    }
    yield found
    for name in found.names:
        gpus(name, had[name])


@pytest.fixture
def space(nodes: Nodes) -> Iterator[Space]:
    """Give a namespace that ends with the test, and with everything in it."""
    name = f"e2e-{uuid.uuid4().hex[:8]}"
    kubectl("create", "namespace", name)
    yield Space(name)
    # What may hold GPUs is waited for; the empty namespace ends by itself. Kubernetes looks again at one with pods only
    # after half of their grace period, however soon they have ended.
    kubectl("delete", "adaptivetrainingjobs,pods", "--all", "--namespace", name, "--timeout=120s", timeout=150)
    wait_for("no pod is left", lambda: not get("pods", "--namespace", name)["items"], 60)
    kubectl("delete", "namespace", name, "--wait=false", "--ignore-not-found")


@pytest.fixture
def monitoring_kinds(installed: None) -> Iterator[None]:
    """Give the cluster the Prometheus operator's own kinds, where it has none; skip where they are not to be had."""
    command = [str(PROJECT / "hack" / "monitoring-crds"), *([] if os.environ.get("CI") else ["--there"])]
    got = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if got.returncode != 0:
        text = f"no definitions of the Prometheus operator's kinds; hack/monitoring-crds gets them:\n{got.stderr}"
        if os.environ.get("CI"):
            pytest.fail(text, pytrace=False)
        pytest.skip(text)
    there = kubectl("get", "crd", "--output=name").split()
    mine = [path for path in sorted(Path(got.stdout.strip()).glob("*.yaml")) if _kind(path) not in there]
    for path in mine:
        kubectl("create", "--filename", str(path))
    yield
    for path in mine:
        kubectl("delete", "--filename", str(path), "--wait=true", timeout=120)


def _kind(path: Path) -> str:
    """Return the name of the definition in a file, as `kubectl get --output=name` says it."""
    return kubectl("create", "--filename", str(path), "--dry-run=client", "--output=name").strip()


@pytest.fixture(autouse=True)
def told_why(request: pytest.FixtureRequest) -> Iterator[None]:
    """Print the state of the cluster below a test that failed."""
    failed = request.session.testsfailed
    yield
    if request.session.testsfailed > failed:
        report = subprocess.run([PROJECT / "hack" / "cluster", "report"], capture_output=True, text=True, timeout=120)
        print(report.stdout[-30_000:])
