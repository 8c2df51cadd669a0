"""The agent as a real process on a real port."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from bodies import QUESTION
from jobs_world import locked

from espalier_agent.policies.advice import decide
from espalier_agent.policies.policy import default_policy
from espalier_agent.service.server import ServerError, serve
from espalier_core.types.advice import AdviceRequest, AdviceResponse
from forked import Forked
from waiting import PATIENCE, until


class Served(Forked):
    """An agent, with what it writes."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        """Start it."""
        self._out, self._log = folder / "out", folder / "log"
        super().__init__(
            "espalier_agent", "serve", *arguments, env=os.environ, out=self._out, log=self._log, cwd=folder
        )

    def announced(self) -> str:
        """Return the URL that it prints."""
        found: str = until(lambda: self._out.read_text().rpartition("\n")[0], self.log)
        return found

    def log(self) -> str:
        """Return what it has logged."""
        return self._log.read_text()

    def ended(self) -> int:
        """Wait for its end and return its exit code."""
        return self.wait(PATIENCE)


Start = Callable[..., Served]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Return a function that starts the agent; whatever still runs afterwards is ended."""
    running: list[Served] = []

    def run(*arguments: str) -> Served:
        running.append(Served(tmp_path, *arguments))
        return running[-1]

    yield run
    for process in running:
        process.kill()
        process.ended()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_where_it_is_answers_and_ends_when_told(start: Start, tmp_path: Path, number: signal.Signals) -> None:
    url_file = tmp_path / "url"
    process = start("--port", "0", "--url-file", str(url_file))
    url = process.announced()
    assert url_file.read_text() == url + "\n"
    with httpx.Client(base_url=url) as client:
        assert client.get("/readyz").status_code == 200
        answer = client.post("/v1/advice", json=QUESTION)
        expected = decide(default_policy(), AdviceRequest.model_validate(QUESTION)).action
        assert AdviceResponse.model_validate(answer.json()).action == expected
        # The client keeps its connection open: an idle one must not hold the end up.
        process.send_signal(number)
        assert process.ended() == 0
    assert not url_file.exists()
    assert f"decision {answer.json()['decisionId']} job=cifar10" in process.log()
    assert "Traceback" not in process.log()


def test_a_host_that_is_not_ours_is_refused() -> None:
    with pytest.raises(ServerError, match=r"cannot serve on 203\.0\.113\.1:0"):
        serve("203.0.113.1", 0)


def test_a_folder_that_is_not_there_is_a_plain_error(start: Start, tmp_path: Path) -> None:
    process = start("--port", "0", "--url-file", str(tmp_path / "nowhere" / "url"))
    assert process.ended() == 2
    assert f"there is no folder {tmp_path / 'nowhere'}; make it first" in process.log()
    assert "Traceback" not in process.log()


def test_it_ends_when_told_though_its_database_is_locked(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "outcomes.db"
    process = start("--port", "0", "--outcomes-db", str(path))
    with httpx.Client(base_url=process.announced()) as client:
        report = {"job": "a", "decisionIds": ["a"], "finalAccuracy": 0.5, "timeBudgetSeconds": 1}
        assert client.post("/v1/outcomes", json=report).status_code == 200
        with locked(path):
            assert client.post("/v1/advice", json=QUESTION).status_code == 200
            process.send_signal(signal.SIGTERM)
            assert process.ended() == 0  # where it waited for the lock it would never end
    assert "Traceback" not in process.log()


def test_a_database_of_another_program_is_refused_at_start(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "theirs.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE theirs (id)")
        connection.commit()
    process = start("--port", "0", "--outcomes-db", str(path))
    assert process.ended() == 2
    assert f"error: {path}: is a database of another program; name another file" in process.log()
