"""`espalier logs`: the log of the leader, or of another worker, as an API server gives it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
from click.testing import CliRunner, Result
from cluster_objects import job, worker
from test_cluster_connect import kubeconfig

from espalier_cli.main import cli
from espalier_core.types.environment import INCARNATION
from espalier_operator.model import WorkerRole

RAW = job("a", maxReplicas=2)


class Server(BaseHTTPRequestHandler):
    """Has the pods of one job, and their logs."""

    pods: ClassVar = [worker(RAW, "n", role=WorkerRole.EXTRA, attempt=7), worker(RAW, "n", age=80)]
    """The leader comes last."""

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        if path.endswith("/log"):
            body = f"{path.split('/')[-2]}: {query}\n".encode() * 2
        else:
            body = json.dumps({"metadata": {"resourceVersion": "1"}, "items": self.pods}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


@pytest.fixture
def config(tmp_path: Path) -> Iterator[Path]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    path = kubeconfig(tmp_path / "config", here="default")
    path.write_text(path.read_text().replace("127.0.0.1:9", f"127.0.0.1:{server.server_port}"))
    yield path
    server.shutdown()
    thread.join()
    server.server_close()


def logs(config: Path, *words: str) -> Result:
    return CliRunner().invoke(cli, ["logs", "a", *words, "--kubeconfig", str(config)])


def test_it_is_that_of_the_leader(config: Path) -> None:
    extra, leader = (pod["metadata"]["name"] for pod in Server.pods)
    said = logs(config)
    assert said.exit_code == 0, said.stderr
    assert said.stdout == f"{leader}: container=c\n" * 2
    assert logs(config, "--follow", "--worker", extra).stdout == f"{extra}: container=c&follow=true\n" * 2
    refused = logs(config, "--worker", "nobody")
    assert refused.exit_code == 2
    assert leader in refused.stderr


def test_side_cars_and_pods_of_others_are_not_the_leader(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An admission webhook puts a container in front of the one that trains; anyone may set the label of a job."""
    pod = worker(RAW, "n")
    container = {"name": "main", "env": [{"name": INCARNATION, "value": "x"}]}
    leader = {**pod, "spec": {**pod["spec"], "containers": [{"name": "proxy"}, container]}}
    others = {"metadata": {"name": "0", "labels": {"espalier.dev/job": "a"}}, "spec": {"containers": [{"name": "c"}]}}
    monkeypatch.setattr(Server, "pods", [others, leader])
    assert logs(config).stdout == f"{pod['metadata']['name']}: container=main\n" * 2
