"""The client of an API server: requests, what failures mean, and watches that go on."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier_core.k8s.client import Client, api_of_context, api_of_process
from espalier_core.k8s.errors import (
    ApiError,
    Call,
    ExpiredError,
    RefusedError,
    Retries,
    Status,
    UnreachableError,
    error_of,
)
from espalier_core.k8s.reflector import Change, Changed, Deleted, Disconnected, Failed, Reconnected, Reflector, Rhythm
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


OTHER_UID = "Precondition failed: UID in precondition: a, UID in object meta: b"


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (Status(400), RefusedError),
        (Status(401), RefusedError),
        (Status(403), RefusedError),
        (Status(404), RefusedError),
        (Status(408), UnreachableError),
        (Status(409, "AlreadyExists"), RefusedError),
        (Status(409, "Conflict", "try again"), UnreachableError),
        (Status(409, "Conflict", OTHER_UID), RefusedError),
        (Status(410, "Expired"), ExpiredError),
        (Status(422, "Invalid"), RefusedError),
        (Status(429), UnreachableError),
        (Status(500), UnreachableError),
        (Status(503), UnreachableError),
    ],
    ids=str,
)
def test_answers_are_classified(status: Status, kind: type[ApiError]) -> None:
    assert type(error_of(status, Call("get", PODS, "a"))) is kind


@given(
    code=st.sampled_from([400, 401, 403, 404, 408, 409, 410, 413, 422, 429, 500, 503]) | st.integers(400, 599),
    reason=st.sampled_from(["", "AlreadyExists", "BadRequest", "Conflict", "Forbidden", "Invalid", "NotFound"]),
    message=st.text(max_size=40) | st.sampled_from(['Pod "a" is invalid: spec: Invalid value', "exceeded quota: q"]),
    form=st.sampled_from(
        [
            'admission webhook "later.example.com" denied the request: {}',
            'admission webhook "later.example.com" denied the request without explanation',
            'Internal error occurred: failed calling webhook "later.example.com": failed to call webhook: {}',
            "pods \"a\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: {}",
            "pods \"a\" is forbidden: policy 'p' with binding 'b' denied request: {}",
        ]
    ),
)
def test_what_admission_denies_is_never_final(code: int, reason: str, message: str, form: str) -> None:
    """A webhook chooses code, reason and message; the API server puts its name before them."""
    status = Status(code, reason, form.format(message))
    assert status.is_denial
    assert (status.is_invalid, status.already_exists, status.is_not_found) == (False, False, False)
    assert type(error_of(status, Call("patch", PODS, "a"))) is UnreachableError


@pytest.mark.parametrize(
    ("code", "message", "final"),
    [
        (422, 'Pod "a-base-0-0" is invalid: spec.containers[0].image: Required value', True),
        (422, 'ConfigMap.v2 "a" is invalid: data: Too long', True),
        (400, 'Pod in version "v1" cannot be handled as a Pod: json: cannot unmarshal string', True),
        (400, "the object provided is unrecognized (must be of type Pod): couldn't get version/kind", True),
        (400, "something else", False),
        (403, 'Pod "a" is invalid: not by validation', False),
        (403, 'pods "a" is forbidden: violates PodSecurity', False),
        (422, "", False),
    ],
)
def test_what_the_api_server_itself_finds_invalid_is_final(code: int, message: str, final: bool) -> None:
    assert Status(code, "Invalid", message).is_invalid is final


def test_an_answer_that_is_no_status_keeps_its_text() -> None:
    assert Status.of(403, b"<html>no</html>") == Status(403, "", "<html>no</html>", is_from_api=False)
    assert Status.of(403, b"[1]").message == "[1]"
    assert str(Status(503)) == "HTTP status 503"
    assert str(Status(403, "Forbidden", "because")) == "Forbidden (because)"


@pytest.mark.parametrize(
    "body",
    [
        b'{"code": 14, "message": "upstream connect error"}',
        b'{"code": 410, "message": "upstream connect error"}',
        b'{"code": [1], "message": "upstream connect error"}',
        b'{"kind": "Status", "code": [1], "message": "upstream connect error"}',
        b'{"kind": "Status", "code": "x", "message": "upstream connect error"}',
        b'{"kind": "Status", "message": "upstream connect error"}',
    ],
)
def test_a_code_that_is_not_of_a_status_does_not_count(body: bytes) -> None:
    status = Status.of(503, body)
    assert (status.code, status.message) == (503, "upstream connect error")
    assert type(error_of(status, Call("get", PODS, "a"))) is UnreachableError


def test_the_code_of_a_status_counts() -> None:
    expired = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}
    assert Status.of_object(expired) == Status(410, "Expired", "too old")


def test_waits_double_within_bounds_and_follow_what_the_server_asks_for() -> None:
    retries = Retries(first_wait=0.1, longest_wait=5.0)
    assert [retries.wait(tried, None, jitter=1.0) for tried in (1, 2, 3, 10)] == [0.1, 0.2, 0.4, 5.0]
    assert retries.wait(1, None, jitter=0.0) == 0.05
    assert retries.wait(1, "3", jitter=1.0) == 3.0
    assert retries.wait(1, "3600", jitter=1.0) == 5.0, "not as long as it likes"
    assert retries.wait(1, "Wed, 21 Oct 2026 07:28:00 GMT", jitter=1.0) == 0.1
    assert retries.wait(10_000) == 5.0


QUICK = Retries(first_wait=0.01, longest_wait=0.02)
UNAVAILABLE = (503, b'{"message": "not yet"}')
FORBIDDEN = (403, b'{"reason": "Forbidden", "message": "no"}')


def pod(uid: str, version: int) -> dict[str, Any]:
    return {"metadata": {"name": uid, "uid": uid, "resourceVersion": str(version)}}


def listing(version: int, *pods: dict[str, Any]) -> Answer:
    return 200, json.dumps({"metadata": {"resourceVersion": str(version)}, "items": pods}).encode()


def watching(*events: tuple[str, dict[str, Any]]) -> Answer:
    return 200, b"".join(json.dumps({"type": kind, "object": of}).encode() + b"\n" for kind, of in events)


EXPIRED = watching(
    ("ERROR", {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"})
)


@pytest.fixture
def follow(server: Any, client: Client) -> Callable[..., tuple[list[Change], list[dict[str, str]]]]:
    """Return what a reflector gives, and asks, while a server answers in turn; it is stopped when no answer is left."""

    def play(
        *answers: Answer, patience: float = float("inf"), known: tuple[dict[str, Any], ...] = ()
    ) -> tuple[list[Change], list[dict[str, str]]]:
        script: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        for each in answers:
            script.put(each)
        over = threading.Event()

        def answer(query: dict[str, str]) -> Answer:
            try:
                return script.get_nowait()
            except queue.Empty:
                reflector._stop.set()  # what comes of this last answer is not given
                over.set()
                return listing(99)

        server.answer = answer
        given: list[Change] = []
        rhythm = Rhythm(watch=1, silence=5.0, patience=patience, retries=QUICK)
        reflector = Reflector(client, PODS, "a", "x=y", given.append, rhythm=rhythm, known=known)
        reflector.start()
        reflector.join(30)
        assert not reflector.is_alive()
        assert over.is_set() or isinstance(given[-1], Failed)
        return given, server.asked

    return play


def test_what_is_listed_comes_first_and_then_what_changes(follow: Any) -> None:
    events = watching(("MODIFIED", pod("a", 6)), ("DELETED", pod("b", 7)), ("BOOKMARK", pod("", 9)))
    given, asked = follow(listing(5, pod("a", 1), pod("b", 2)), events, watching())
    assert given == [Changed(pod("a", 1)), Changed(pod("b", 2)), Changed(pod("a", 6)), Deleted(pod("b", 7))]
    assert [query.get("resourceVersion") for query in asked[:3]] == [None, "5", "9"], "it continues from the bookmark"
    assert {query["fieldSelector"] for query in asked} == {"x=y"}


def test_of_what_is_known_only_changes_are_given(follow: Any) -> None:
    given, _ = follow(listing(5, pod("a", 1), pod("b", 4)), known=(pod("a", 1), pod("b", 2), pod("c", 3)))
    assert given == [Deleted(pod("c", 3)), Changed(pod("b", 4))]


@pytest.mark.parametrize("end", [EXPIRED, UNAVAILABLE], ids=["410", "503"])
def test_after_an_expired_version_or_an_error_all_are_listed_again(follow: Any, end: Answer) -> None:
    given, asked = follow(listing(5, pod("a", 1), pod("b", 2)), end, listing(9, pod("b", 8)), watching())
    assert given == [Changed(pod("a", 1)), Changed(pod("b", 2)), Deleted(pod("a", 1)), Changed(pod("b", 8))]
    assert asked[3]["resourceVersion"] == "9"


def test_an_outage_is_given_once_and_so_is_its_end(follow: Any) -> None:
    gone = [UNAVAILABLE] * 3
    given, _ = follow(listing(5), UNAVAILABLE, *gone, FORBIDDEN, listing(6, pod("a", 6)), watching(), *gone, listing(7))
    kinds = [type(change) for change in given]
    assert kinds == [Disconnected, Changed, Reconnected, Disconnected, Deleted, Reconnected]
    assert isinstance(given[0].error, UnreachableError)


def test_patience_ends(follow: Any) -> None:
    given, _ = follow(listing(5), UNAVAILABLE, UNAVAILABLE, patience=0.0)
    assert [type(change) for change in given] == [Disconnected, Failed]


def test_a_right_that_is_missing_at_the_start_is_waited_for_only_without_a_limit(follow: Any) -> None:
    given, _ = follow(FORBIDDEN, patience=30.0)
    assert [type(change) for change in given] == [Failed]
    assert isinstance(given[0].error, RefusedError)
    given, _ = follow(FORBIDDEN, FORBIDDEN, listing(5, pod("a", 1)))
    assert [type(change) for change in given] == [Disconnected, Changed, Reconnected]
