"""The synchronous client and a server with faults: pages, retries with a limit, half answers, another clock."""

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

from espalier_kube.client import Client
from espalier_kube.connection import api_of_context
from espalier_kube.errors import ExpiredError, RefusedError, UnreachableError
from espalier_kube.resources import JOBS, PODS
from espalier_kube.retries import Retries

RETRIES = Retries(deadline=30.0, tries=3, first_wait=0.01)

Answer = tuple[int, bytes]


class Server:
    """An HTTP server on loopback that answers as `answer(query)` says."""

    def __init__(self) -> None:
        self.answer: Callable[[dict[str, str]], Answer] = lambda query: (200, page())
        self.ahead = 0.0
        """Seconds by which its clock is ahead of ours."""
        self.asked: list[dict[str, str]] = []
        self.patched: list[tuple[str, str, Any]] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_PATCH(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                server.patched.append((self.path, self.headers["Content-Type"], body))
                self.do_GET()

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
def client(server: Server, tmp_path: Path) -> Iterator[Client]:
    path = tmp_path / "config"
    address = f"http://127.0.0.1:{server.http.server_address[1]}"
    whole: dict[str, Any] = {
        "current-context": "x",
        "clusters": [{"name": "x", "cluster": {"server": address}}],
        "users": [],
        "contexts": [{"name": "x", "context": {"cluster": "x"}}],
    }
    path.write_text(json.dumps(whole))
    client = Client(api_of_context(path, None)[0], RETRIES)
    yield client
    client.close()


def names(client: Client) -> list[str]:
    return [raw["metadata"]["name"] for raw in client.list(PODS, "a", labels="b=c").items]


def test_pages_are_put_together(server: Server, client: Client) -> None:
    pages = {"": page("a", "b", after="one"), "one": page("c", after="two"), "two": page("d")}
    server.answer = lambda query: (200, pages[query.get("continue", "")])
    assert names(client) == ["a", "b", "c", "d"]
    assert [query["labelSelector"] for query in server.asked] == ["b=c"] * 3


def test_pages_that_expire_are_asked_for_all_at_once(server: Server, client: Client) -> None:
    def answer(query: dict[str, str]) -> Answer:
        if "continue" in query:
            return 410, b'{"message": "the provided continue parameter is too old"}'
        return 200, page("a", after="x") if "limit" in query else page("a", "b")

    server.answer = answer
    assert names(client) == ["a", "b"]
    server.answer = lambda query: (410, b'{"message": "always too old"}')
    with pytest.raises(ExpiredError):
        names(client)


@pytest.mark.parametrize("trouble", [(503, b"starting"), (429, b""), (200, b'{"metadata": {"resour'), (200, b"")])
def test_what_may_pass_is_tried_again_with_a_limit(server: Server, client: Client, trouble: Answer) -> None:
    answers = [trouble, trouble, (200, page("a"))]
    server.answer = lambda query: answers[len(server.asked) - 1]
    assert names(client) == ["a"]
    server.asked.clear()
    server.answer = lambda query: trouble
    with pytest.raises(UnreachableError):
        names(client)
    assert len(server.asked) == RETRIES.tries


def test_what_is_refused_is_not_tried_again(server: Server, client: Client) -> None:
    server.answer = lambda query: (400, b'{"message": "bad selector"}')
    with pytest.raises(RefusedError, match="HTTP status 400 .bad selector."):
        names(client)
    assert len(server.asked) == 1


@pytest.mark.parametrize(("ahead", "within"), [(0.0, 0.1), (0.9, 0.1), (3600.0, 2.0), (-90.0, 2.0)])
def test_time_is_that_of_the_cluster(server: Server, client: Client, ahead: float, within: float) -> None:
    server.ahead = ahead
    names(client)
    far = ahead if abs(ahead) > 2 else 0.0  # a second is within what the server's clock tells
    assert abs(client.now() - time.time() - far) < within


def test_a_watch_that_breaks_off_in_a_line_gives_what_is_whole(server: Server, client: Client) -> None:
    change = json.dumps({"type": "ADDED", "object": {"metadata": {"name": "a"}}}).encode()
    server.answer = lambda query: (200, change + b"\n" + change + b"\n" + b'{"type": "MODIF')
    changes = client.watch(JOBS, "a", 5, seconds=1, silence=5)
    assert [each["type"] for each in changes] == ["ADDED", "ADDED"]
    assert server.asked[0]["resourceVersion"] == "5"
    server.answer = lambda query: (200, change + b"\n" + b"nonsense\n")
    with pytest.raises(UnreachableError):
        list(client.watch(JOBS, "a", 5, seconds=1, silence=5))


def test_an_error_in_a_watch_is_raised(server: Server, client: Client) -> None:
    error = {"type": "ERROR", "object": {"code": 410, "message": "too old resource version"}}
    server.answer = lambda query: (200, json.dumps(error).encode() + b"\n")
    with pytest.raises(ExpiredError, match="too old"):
        list(client.watch(JOBS, "a", 5, seconds=1, silence=5))


def test_a_merge_patch_says_what_it_is(server: Server, client: Client) -> None:
    server.answer = lambda query: (200, b"{}")
    client.merge_patch(PODS, "a", "b", {"data": {"x": "y"}})
    assert server.patched == [("/api/v1/namespaces/a/pods/b", "application/merge-patch+json", {"data": {"x": "y"}})]


def test_an_answer_that_is_no_object_is_tried_again(server: Server, client: Client) -> None:
    server.answer = lambda query: (200, b"[]")
    with pytest.raises(UnreachableError, match="list where an object is expected"):
        client.get(PODS, "a", "b")
