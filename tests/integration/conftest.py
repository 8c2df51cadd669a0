"""A real API server for the tests of this folder; what they share lies beside this file."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools import tool

# Tests have no package: their shared parts are imported from beside them. What asks helm lies beside the tests of the
# chart that need no API server.
sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "chart"))
sys.path.insert(0, str(Path(__file__).parent))

from apiserver import ApiServer
from audits import audit_flags
from charts import Helm, helm_or_skip
from fake_kubelet import FakeKubelet
from kueue_process import KueueProcess, definitions, kueue_folder
from operators import World
from releases import Release, installable
from trainers import Trainers

# The API server, helm and Prometheus are programs in Go: with room for garbage they take a fifth less CPU time, and as
# the files of tests use all cores anyway, a twelfth less on one each.
os.environ.setdefault("GOGC", "400")
os.environ.setdefault("GOMAXPROCS", "1")

HERE = Path(__file__).parent
PROJECT = HERE.parents[1]


@pytest.fixture(scope="session")
def kubernetes_binaries() -> Path:
    """Return the folder with etcd, kube-apiserver and kubectl."""
    return tool("envtest", "no API server to test with")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """Let the API servers rest when unit tests follow: idle ones still take CPU time. Fixtures start them again."""
    yield
    if nextitem is None or HERE not in nextitem.path.parents:
        for server in _RUNNING:
            server.rest()


_RUNNING: list[ApiServer] = []


@pytest.fixture(scope="session")
def api_server(kubernetes_binaries: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """Give a running API server that knows our kinds; see `apiserver.ApiServer`."""
    with ApiServer(kubernetes_binaries, tmp_path_factory.mktemp("apiserver")) as server:
        _RUNNING.append(server)
        server.install(PROJECT / "crds")
        yield server


@pytest.fixture(scope="module")
def namespace(api_server: ApiServer) -> Iterator[str]:
    """Give a namespace for the tests of one file, on an API server that runs."""
    api_server.start()
    yield api_server.namespace()
    api_server.clear()


@pytest.fixture
def cluster(api_server: ApiServer) -> Iterator[ApiServer]:
    """Give the API server without jobs, pods and nodes, running, and leave it so."""
    api_server.start()
    api_server.clear()
    yield api_server
    api_server.start()
    api_server.clear()


@pytest.fixture
def kubelet(cluster: ApiServer) -> Iterator[FakeKubelet]:
    """Give a cluster whose pods run; nodes are added by `FakeKubelet.add_node`."""
    with FakeKubelet(cluster) as kubelet:
        yield kubelet


@pytest.fixture
def world(cluster: ApiServer, kubelet: FakeKubelet) -> Iterator[World]:
    """Give a cluster in which pods run and leaders report; operators are started by `World.operate`."""
    with Trainers(cluster) as trainers, World(cluster, kubelet, trainers) as world:
        yield world


@pytest.fixture(scope="module")
def kueue_installed(api_server: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Give an API server that knows Kueue's kinds as long as the tests of a file last; returns `kueue_folder`."""
    folder = kueue_folder()
    crds = definitions(folder, tmp_path_factory.mktemp("kueue-crds"))
    api_server.start()
    api_server.install(crds)
    yield folder
    api_server.start()
    api_server.uninstall(*(f"{path.stem.removeprefix('kueue.x-k8s.io_')}.kueue.x-k8s.io" for path in crds.iterdir()))


@pytest.fixture
def kueue(cluster: ApiServer, kueue_installed: Path, tmp_path: Path) -> Iterator[KueueProcess]:
    """Give a Kueue that runs, without any queue."""
    with KueueProcess(kueue_installed, cluster, tmp_path) as process:
        yield process


@pytest.fixture(scope="session")
def chart_server(kubernetes_binaries: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """Give an API server of its own, without our kinds, that writes down what ServiceAccounts ask for."""
    folder = tmp_path_factory.mktemp("chart")
    with ApiServer(kubernetes_binaries, folder, audit_flags(folder)) as server:
        _RUNNING.append(server)
        yield server


@pytest.fixture(scope="session")
def helm(chart_server: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Helm:
    """Give helm for that server."""
    return helm_or_skip(tmp_path_factory.mktemp("helm"), chart_server.kubeconfig)


@pytest.fixture
def release(chart_server: ApiServer, helm: Helm) -> Iterator[Release]:
    """Give a release to install there; see `releases.installable`."""
    chart_server.start()
    with installable(chart_server, helm) as release:
        yield release
