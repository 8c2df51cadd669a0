"""Reading from a server that is slow of wit: pages, retries with a limit, half answers, another clock."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from espalier_cli.cluster import client
from espalier_cli.cluster.client import Cluster, connect
from espalier_cli.cluster.errors import ExpiredError, UnreachableError
from espalier_operator.kube.objects.resources import JOBS, PODS

Answer = tuple[int, bytes]


class Server:
    """An HTTP server on loopback that answers as `answer(query)` says."""

    def __init__(self) -> None:
        self.answer: Callable[[dict[str, str]], Answer] = lambda query: (200, page())
        self.ahead = 0.0
        """By so many seconds its clock is ahead of ours."""
        self.asked: list[dict[str, str]] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                query = {key: values[0] for key, values in parse_qs(urlsplit(self.path).query).items()}
                server.asked.append(query)
                status, body = server.answer(query)
                self.send_response_only(status)
                self.send_header("Date", formatdate(time.time() + server.ahead, usegmt=True))
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.02})

    def __enter__(self) -> Server:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.http.shutdown()
        self._thread.join()
        self.http.server_close()


def page(*names: str, after: str = "") -> bytes:
    metadata = {"resourceVersion": "7", **({"continue": after} if after else {})}
    return json.dumps({"metadata": metadata, "items": [{"metadata": {"name": name}} for name in names]}).encode()


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


@pytest.fixture
def cluster(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setattr(client, "PAUSE_SECONDS", 0.01)
    path = tmp_path / "config"
    address = f"http://127.0.0.1:{server.http.server_address[1]}"
    whole: dict[str, Any] = {
        "current-context": "x",
        "clusters": [{"name": "x", "cluster": {"server": address}}],
        "users": [],
        "contexts": [{"name": "x", "context": {"cluster": "x"}}],
    }
    path.write_text(json.dumps(whole))
    with connect(path, None) as cluster:
        yield cluster


def names(cluster: Cluster) -> list[str]:
    return [raw["metadata"]["name"] for raw in cluster.list_all(PODS, "a", labelSelector="b=c").items]


def test_pages_are_put_together(server: Server, cluster: Cluster) -> None:
    pages = {"": page("a", "b", after="one"), "one": page("c", after="two"), "two": page("d")}
    server.answer = lambda query: (200, pages[query.get("continue", "")])
    assert names(cluster) == ["a", "b", "c", "d"]
    assert [query["labelSelector"] for query in server.asked] == ["b=c"] * 3


def test_pages_that_expire_are_asked_for_all_at_once(server: Server, cluster: Cluster) -> None:
    def answer(query: dict[str, str]) -> Answer:
        if "continue" in query:
            return 410, b'{"message": "the provided continue parameter is too old"}'
        return 200, page("a", after="x") if "limit" in query else page("a", "b")

    server.answer = answer
    assert names(cluster) == ["a", "b"]
    server.answer = lambda query: (410, b'{"message": "always too old"}')
    with pytest.raises(ExpiredError):
        names(cluster)


@pytest.mark.parametrize("trouble", [(503, b"starting"), (429, b""), (200, b'{"metadata": {"resour'), (200, b"")])
def test_what_may_pass_is_tried_again_with_a_limit(server: Server, cluster: Cluster, trouble: Answer) -> None:
    answers = [trouble, trouble, (200, page("a"))]
    server.answer = lambda query: answers[len(server.asked) - 1]
    assert names(cluster) == ["a"]
    server.asked.clear()
    server.answer = lambda query: trouble
    with pytest.raises(UnreachableError):
        names(cluster)
    assert len(server.asked) == client.ATTEMPTS


def test_what_is_refused_is_not_tried_again(server: Server, cluster: Cluster) -> None:
    server.answer = lambda query: (400, b'{"message": "bad selector"}')
    with pytest.raises(client.ClusterError, match=r"refuses \(400\): bad selector"):
        names(cluster)
    assert len(server.asked) == 1


@pytest.mark.parametrize(("ahead", "within"), [(0.0, 0.1), (0.9, 0.1), (3600.0, 2.0), (-90.0, 2.0)])
def test_time_is_that_of_the_cluster(server: Server, cluster: Cluster, ahead: float, within: float) -> None:
    server.ahead = ahead
    names(cluster)
    far = ahead if abs(ahead) > 2 else 0.0  # a second is within what the server's clock tells
    assert abs(cluster.now() - time.time() - far) < within


def test_a_watch_that_breaks_off_in_a_line_gives_what_is_whole(server: Server, cluster: Cluster) -> None:
    change = json.dumps({"type": "ADDED", "object": {"metadata": {"name": "a"}}}).encode()
    server.answer = lambda query: (200, change + b"\n" + change + b"\n" + b'{"type": "MODIF')
    with cluster.watch(JOBS, "a", 5, 1) as changes:
        assert [each["type"] for each in changes] == ["ADDED", "ADDED"]
    assert server.asked[0]["resourceVersion"] == "5"
    server.answer = lambda query: (200, change + b"\n" + b"nonsense\n")
    with cluster.watch(JOBS, "a", 5, 1) as changes, pytest.raises(UnreachableError):
        list(changes)


def test_an_error_in_a_watch_is_raised(server: Server, cluster: Cluster) -> None:
    error = {"type": "ERROR", "object": {"code": 410, "message": "too old resource version"}}
    server.answer = lambda query: (200, json.dumps(error).encode() + b"\n")
    with cluster.watch(JOBS, "a", 5, 1) as changes, pytest.raises(ExpiredError, match="too old"):
        list(changes)


def test_the_first_error_of_several_calls_is_raised(server: Server, cluster: Cluster) -> None:
    server.answer = lambda query: (400, b'{"message": "no"}') if "labelSelector" in query else (200, page("a"))
    with pytest.raises(client.ClusterError, match="no"):
        cluster.at_once(lambda: cluster.list_all(PODS), lambda: cluster.list_all(PODS, labelSelector="x"))
    both = cluster.at_once(lambda: cluster.list_all(PODS), lambda: cluster.list_all(JOBS))
    assert [listed.version for listed in both] == [7, 7]
