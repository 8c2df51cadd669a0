"""A cluster with Espalier in it, for tests that look at it as its users do.

Any cluster will do: KUBECONFIG names it, Espalier is installed (`make cluster` does both), nodes are docker containers
with the same names (as kind's are). The tests change the nodes' GPUs and put them back.

Several processes may run the tests side by side (`make e2e`). Each test claims what it needs for itself
(`claims.py`), and its jobs stay on the nodes that it claimed, by a type of GPU that only these have.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools import tool

sys.path.insert(0, str(Path(__file__).parent))

from claims import MARKERS, Claims, disturbed, in_order, used, wanted_nodes
from kube import PROJECT, SYSTEM, ClusterError, Nodes, Space, get, gpus, helm, kubectl, set_type, wait_for, workers


def pytest_configure(config: pytest.Config) -> None:
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = [item for item in items if Path(__file__).parent in item.path.parents]
    for item in here:  # without the fixtures, which wait for other tests
        item.add_marker(pytest.mark.timeout(400, func_only=True))
    items[:] = [item for item in items if item not in here] + in_order(here)


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
def installation(installed: None) -> Iterator[None]:
    """Put the installation back to what it was."""
    before = json.loads(helm("history", "espalier", "--output=json"))[-1]["revision"]
    yield
    helm("rollback", "espalier", str(before), "--wait", "--timeout=180s")
    kubectl("rollout", "status", "deployment/espalier-agent", "--namespace", SYSTEM, "--timeout=120s", timeout=150)


@pytest.fixture(scope="session")
def claims(tmp_path_factory: pytest.TempPathFactory) -> Claims:
    folder = tmp_path_factory.getbasetemp()
    return Claims(folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder)


@pytest.fixture
def services(request: pytest.FixtureRequest, installed: None, claims: Claims) -> Iterator[None]:
    """Claim the operator and the agent: alone where the test disturbs them, otherwise with others."""
    with contextlib.ExitStack() as held:
        for name in used(request.node):
            held.enter_context(claims.service(name, alone=name in disturbed(request.node)))
        yield


@pytest.fixture(scope="session")
def all_gpus(installed: None, claims: Claims) -> Iterator[None]:
    """Take the GPUs from all worker nodes, and give them back in the end."""
    kept = claims.folder / "gpus.json"

    def take() -> None:
        kept.write_text(json.dumps(workers()))
        for name in workers():
            gpus(name, 0)
            set_type(name, "unclaimed")

    def give_back() -> None:
        for name, count in json.loads(kept.read_text()).items():
            set_type(name, "")
            gpus(name, count)

    with claims.run(take, give_back):
        yield


@pytest.fixture
def nodes(request: pytest.FixtureRequest, all_gpus: None, services: None, claims: Claims) -> Iterator[Nodes]:
    """Give worker nodes with a type of GPU that no other node has. They have no GPUs before and after."""
    count, names = wanted_nodes(request.node), sorted(workers())
    assert len(names) >= count, f"{count} worker nodes are needed"
    with claims.nodes(names, count) as mine:
        # Jobs that are applied as they stand in docs/ take any type, the first in order of name.
        gpu_type = "" if "shell" in request.fixturenames else f"of-{mine[0]}"
        for name in mine:
            set_type(name, gpu_type)
        yield Nodes(mine, gpu_type)
        for name in mine:
            gpus(name, 0)
            set_type(name, "unclaimed")


@pytest.fixture
def space(nodes: Nodes) -> Iterator[Space]:
    """Give a namespace that ends with the test, and with everything in it."""
    name = f"e2e-{uuid.uuid4().hex[:8]}"
    kubectl("create", "namespace", name)
    yield Space(name, nodes.gpu_type)
    # What may hold GPUs is waited for; the empty namespace ends by itself. Kubernetes looks again at one with pods only
    # after half of their grace period, however soon they have ended.
    kubectl("delete", "adaptivetrainingjobs,pods", "--all", "--namespace", name, "--timeout=120s", timeout=150)
    wait_for("no pod is left", lambda: not get("pods", namespace=name)["items"])
    kubectl("delete", "namespace", name, "--wait=false", "--ignore-not-found")


@pytest.fixture
def monitoring_kinds(installed: None) -> Iterator[None]:
    """Give the cluster the Prometheus operator's own kinds, where it has none; skip where they are not to be had."""
    folder = tool("monitoring-crds", "no kinds of the Prometheus operator; hack/monitoring-crds gets them")
    there = kubectl("get", "crd", "--output=name").split()
    mine = [path for path in sorted(folder.glob("*.yaml")) if _kind(path) not in there]
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
