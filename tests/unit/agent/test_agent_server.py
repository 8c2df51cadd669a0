"""The agent as a real process on a real port."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from espalier_agent.data import named_architecture
from espalier_agent.history import decisions
from espalier_agent.policies.advice import decide
from espalier_agent.policies.files import default_policy
from espalier_agent.policies.policy import Policy
from espalier_agent.service.server import ServerError, serve
from espalier_api.advice import AdviceRequest, AdviceResponse

Start = Callable[..., subprocess.Popen[str]]

QUESTION = {
    "job": "cifar10",
    "architecture": named_architecture("cnn1").to_json(),
    "timeLeftSeconds": 330.0,
    "timeBudgetSeconds": 400.0,
}


@pytest.fixture
def start() -> Iterator[Start]:
    """Return a function that starts the agent; whatever still runs afterwards is ended."""
    running: list[subprocess.Popen[str]] = []

    def run(*arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "espalier_agent", "serve", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        running.append(process)
        return process

    yield run
    for process in running:
        process.kill()
        process.communicate()


def announced(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    url = process.stdout.readline().strip()
    assert url, process.stderr and process.stderr.read()
    return url


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_where_it_is_answers_and_ends_when_told(start: Start, tmp_path: Path, number: signal.Signals) -> None:
    url_file = tmp_path / "url"
    process = start("--port", "0", "--url-file", str(url_file))
    url = announced(process)
    assert url_file.read_text() == url + "\n"
    with httpx.Client(base_url=url) as client:
        assert client.get("/readyz").status_code == 200
        answer = client.post("/v1/advice", json=QUESTION)
        expected = decide(default_policy(), AdviceRequest.model_validate(QUESTION)).action
        assert AdviceResponse.model_validate(answer.json()).action == expected
        # The client keeps its connection open: an idle one must not hold the end up.
        process.send_signal(number)
        _, log = process.communicate(timeout=60)
    assert not url_file.exists()
    assert process.returncode == 0
    assert f"decision {answer.json()['decisionId']} job=cifar10" in log
    assert "Traceback" not in log


def test_a_host_that_is_not_ours_is_refused(policy: Policy) -> None:
    with pytest.raises(ServerError, match=r"cannot serve on 203\.0\.113\.1:0"):
        serve("203.0.113.1", 0)


def test_what_is_acknowledged_survives_a_kill(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "outcomes.db"
    process = start("--port", "0", "--outcomes-db", str(path))
    acknowledged = []
    with httpx.Client(base_url=announced(process)) as client:
        for number in range(30):
            decision = client.post("/v1/advice", json=QUESTION).json()["decisionId"]
            report = {"job": QUESTION["job"], "decisionIds": [decision], "finalAccuracy": number / 30}
            report["timeBudgetSeconds"] = 1
            assert client.post("/v1/outcomes", json=report).status_code == 200
            acknowledged.append((decision, number / 30))
        process.kill()
    process.wait(30)
    assert [(each.decision_id, each.final_accuracy) for each in decisions(path)] == acknowledged


def test_it_ends_when_told_though_its_database_is_locked(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "outcomes.db"
    process = start("--port", "0", "--outcomes-db", str(path))
    with httpx.Client(base_url=announced(process)) as client:
        report = {"job": "a", "decisionIds": ["a"], "finalAccuracy": 0.5, "timeBudgetSeconds": 1}
        assert client.post("/v1/outcomes", json=report).status_code == 200
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            assert client.post("/v1/advice", json=QUESTION).status_code == 200
            process.send_signal(signal.SIGTERM)
            _, log = process.communicate(timeout=60)  # where it waited for the lock it would never end
    assert process.returncode == 0
    assert "Traceback" not in log


def test_a_database_of_another_program_is_refused_at_start(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "theirs.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE theirs (id)")
        connection.commit()
    process = start("--port", "0", "--outcomes-db", str(path))
    _, log = process.communicate(timeout=60)
    assert process.returncode == 1
    assert f"error: {path}: is a database of another program; name another file" in log
