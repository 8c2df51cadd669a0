"""`espalier logs`: the log of the leader, or of another worker, as an API server gives it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from cluster_objects import Object, job, worker
from test_cluster_connect import kubeconfig

from espalier_cli.main import cli
from espalier_core.types.environment import INCARNATION
from espalier_operator.model import WorkerRole
from http_answers import answering

RAW = job("a", maxReplicas=2)


@pytest.fixture
def pods() -> list[Object]:
    """Return the pods of the job; the leader comes last."""
    return [worker(RAW, "n", role=WorkerRole.EXTRA, attempt=7), worker(RAW, "n", age=80)]


@pytest.fixture
def config(tmp_path: Path, pods: list[Object]) -> Iterator[Path]:
    """Give a kubeconfig for an API server that has these pods, and their logs."""

    def answer(asked: str) -> tuple[int, bytes]:
        path, _, query = asked.partition("?")
        if path.endswith("/log"):
            return 200, f"{path.split('/')[-2]}: {query}\n".encode() * 2
        return 200, json.dumps({"metadata": {"resourceVersion": "1"}, "items": pods}).encode()

    with answering(answer) as url:
        path = kubeconfig(tmp_path / "config", here="default")
        path.write_text(path.read_text().replace("http://127.0.0.1:9", url))
        yield path


def logs(config: Path, *words: str) -> Result:
    return CliRunner().invoke(cli, ["logs", "a", *words, "--kubeconfig", str(config)])


def test_it_is_that_of_the_leader(config: Path, pods: list[Object]) -> None:
    extra, leader = (pod["metadata"]["name"] for pod in pods)
    said = logs(config)
    assert said.exit_code == 0, said.stderr
    assert said.stdout == f"{leader}: container=c\n" * 2
    assert logs(config, "--follow", "--worker", extra).stdout == f"{extra}: container=c&follow=true\n" * 2
    refused = logs(config, "--worker", "nobody")
    assert refused.exit_code == 2
    assert leader in refused.stderr


def test_side_cars_and_pods_of_others_are_not_the_leader(config: Path, pods: list[Object]) -> None:
    """An admission webhook puts a container in front of the one that trains; anyone may set the label of a job."""
    pod = worker(RAW, "n")
    container = {"name": "main", "env": [{"name": INCARNATION, "value": "x"}]}
    leader = {**pod, "spec": {**pod["spec"], "containers": [{"name": "proxy"}, container]}}
    others = {"metadata": {"name": "0", "labels": {"espalier.dev/job": "a"}}, "spec": {"containers": [{"name": "c"}]}}
    pods[:] = [others, leader]
    assert logs(config).stdout == f"{pod['metadata']['name']}: container=main\n" * 2
