"""List, then watch, and list again: what a reflector gives of a server that follows a script."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable
from typing import Any

import pytest

from espalier_core.k8s.client import Client
from espalier_core.k8s.errors import RefusedError, Retries, UnreachableError
from espalier_core.k8s.reflector import Change, Changed, Deleted, Disconnected, Failed, Reconnected, Reflector, Rhythm
from espalier_core.k8s.resources import PODS

Answer = tuple[int, bytes]
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
