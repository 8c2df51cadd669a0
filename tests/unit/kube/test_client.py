"""The synchronous client and a server with faults: pages, retries with a limit, half answers, another clock."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from espalier_core.k8s.client import Client, api_of_context, api_of_process
from espalier_core.k8s.errors import ExpiredError, RefusedError, Retries, UnreachableError
from espalier_core.k8s.resources import JOBS, PODS

Answer = tuple[int, bytes]


def page(*names: str, after: str = "") -> bytes:
    metadata = {"resourceVersion": "7", **({"continue": after} if after else {})}
    return json.dumps({"metadata": metadata, "items": [{"metadata": {"name": name}} for name in names]}).encode()


def names(client: Client) -> list[str]:
    return [raw["metadata"]["name"] for raw in client.list(PODS, "a", labels="b=c").items]


def test_pages_are_put_together(server: Any, client: Client) -> None:
    pages = {"": page("a", "b", after="one"), "one": page("c", after="two"), "two": page("d")}
    server.answer = lambda query: (200, pages[query.get("continue", "")])
    assert names(client) == ["a", "b", "c", "d"]
    assert [query["labelSelector"] for query in server.asked] == ["b=c"] * 3


def test_pages_that_expire_are_asked_for_all_at_once(server: Any, client: Client) -> None:
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
def test_what_may_pass_is_tried_again_with_a_limit(server: Any, client: Client, trouble: Answer) -> None:
    answers = [trouble, trouble, (200, page("a"))]
    server.answer = lambda query: answers[len(server.asked) - 1]
    assert names(client) == ["a"]
    server.asked.clear()
    server.answer = lambda query: trouble
    with pytest.raises(UnreachableError):
        names(client)
    assert len(server.asked) == 3


def test_the_next_try_comes_when_the_server_asks_for_it(
    server: Any, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr("espalier_core.k8s.client.time.sleep", waits.append)
    server.headers["Retry-After"] = "2"
    answers = [(429, b""), (503, b""), (200, page("a"))]
    server.answer = lambda query: answers[len(server.asked) - 1]
    assert names(client) == ["a"]
    assert waits == [2.0, 2.0]


def test_what_is_refused_is_not_tried_again(server: Any, client: Client) -> None:
    server.answer = lambda query: (400, b'{"message": "bad selector"}')
    with pytest.raises(RefusedError, match="HTTP status 400 .bad selector."):
        names(client)
    assert len(server.asked) == 1


@pytest.mark.parametrize(("ahead", "within"), [(0.0, 0.0), (0.9, 0.0), (3600.0, 2.0), (-90.0, 2.0)])
def test_time_is_that_of_the_cluster(server: Any, client: Client, ahead: float, within: float) -> None:
    server.ahead = ahead
    server.answer = lambda query: (200, page())
    begun = time.time()
    names(client)
    asked = time.time() - begun  # the answer may be as old
    far = ahead if abs(ahead) > 2 else 0.0  # a second is within what the server's clock tells
    earliest, now, latest = time.time(), client.now(), time.time()
    assert earliest + far - within - asked <= now <= latest + far + within + asked


@pytest.mark.parametrize("in_a_process", [False, True])
def test_the_file_of_a_token_is_read_again(
    server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_a_process: bool
) -> None:
    token, path = tmp_path / "token", server.kubeconfig(tmp_path / "config", tokenFile="token")
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("KUBECONFIG", str(path))
    server.answer = lambda query: (200, page())
    for seconds, expected in ((60.0, ["a", "a", "a", "a"]), (0.0, ["a", "b", "b", "c"])):
        monkeypatch.setattr("espalier_core.k8s.client._TOKEN_SECONDS", seconds)
        token.write_text("a\n")
        api = api_of_process("test") if in_a_process else api_of_context(path, None)[0]
        client = Client(api, Retries(tries=1))
        for content in ("a", "b", None, "c"):  # None: it is being replaced
            token.unlink(missing_ok=True)
            if content is not None:
                token.write_text(f"{content}\n")
            names(client)
        client.close()
        assert server.tokens[-4:] == [f"Bearer {each}" for each in expected]


def test_a_watch_that_breaks_off_in_a_line_gives_what_is_whole(server: Any, client: Client) -> None:
    change = json.dumps({"type": "ADDED", "object": {"metadata": {"name": "a"}}}).encode()
    server.answer = lambda query: (200, change + b"\n" + change + b"\n" + b'{"type": "MODIF')
    changes = client.watch(JOBS, "a", 5, seconds=1, silence=5)
    assert [each["type"] for each in changes] == ["ADDED", "ADDED"]
    assert server.asked[0]["resourceVersion"] == "5"
    server.answer = lambda query: (200, change + b"\n" + b"nonsense\n")
    with pytest.raises(UnreachableError):
        list(client.watch(JOBS, "a", 5, seconds=1, silence=5))


def test_an_error_in_a_watch_is_raised(server: Any, client: Client) -> None:
    error = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old resource version"}}
    server.answer = lambda query: (200, json.dumps(error).encode() + b"\n")
    with pytest.raises(ExpiredError, match="too old"):
        list(client.watch(JOBS, "a", 5, seconds=1, silence=5))


def test_a_merge_patch_says_what_it_is(server: Any, client: Client) -> None:
    server.answer = lambda query: (200, b"{}")
    client.merge_patch(PODS, "a", "b", {"data": {"x": "y"}})
    assert server.patched == [("/api/v1/namespaces/a/pods/b", "application/merge-patch+json", {"data": {"x": "y"}})]


def test_a_list_that_is_none_is_an_error(server: Any, client: Client) -> None:
    server.answer = lambda query: (200, b"{}")
    with pytest.raises(UnreachableError, match="metadata"):
        names(client)


def test_an_answer_that_is_no_object_is_tried_again(server: Any, client: Client) -> None:
    server.answer = lambda query: (200, b"[]")
    with pytest.raises(UnreachableError, match="list where an object is expected"):
        client.get(PODS, "a", "b")
