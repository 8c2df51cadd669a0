"""Requests to an API server that answers slowly, badly, or not at all: over real HTTP, on the loopback."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from api_stub import serving
from espalier_core.k8s import resources
from espalier_core.k8s.errors import Retries, Status
from espalier_operator.kube.client import PAGE, ApiRefusalError, KubeClient, NotOwnedError
from espalier_operator.loop import BackendError

QUICK = Retries(deadline=0.5, tries=4, first_wait=0.01, longest_wait=0.2)
POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "ns"}}


def status(code: int, reason: str = "", message: str = "", **headers: str) -> web.Response:
    """Return a failure as an API server says it."""
    return web.json_response({"kind": "Status", "reason": reason, "message": message}, status=code, headers=headers)


class Script:
    """Answers in turn, and keeps what was asked."""

    def __init__(self, *answers: Callable[[web.Request], Awaitable[web.Response]] | web.Response) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, str, dict[str, str], Any]] = []

    async def answer(self, request: web.Request) -> web.Response:
        text = await request.text()
        self.asked.append((request.method, request.path, dict(request.query), json.loads(text) if text else None))
        answer = self.answers.pop(0)
        return answer if isinstance(answer, web.Response) else await answer(request)


def play(script: Script, do: Callable[[KubeClient], Awaitable[Any]], may_write: Any = lambda: True) -> Any:
    """Return what `do` returns with a client of `script`; nothing of the script may be left."""

    async def run() -> Any:
        async with serving(script.answer) as (api, _):
            return await do(KubeClient(api, QUICK, may_write=may_write))

    result = asyncio.run(run())
    assert script.answers == []
    return result


def get(client: KubeClient) -> Awaitable[Any]:
    return client.get(resources.PODS, "ns", "p")


async def cut(request: web.Request) -> web.Response:
    """Cut the connection instead of answering."""
    request.transport.abort()
    return web.Response()


async def sleep(request: web.Request) -> web.Response:
    """Answer after the deadline."""
    await asyncio.sleep(1)
    return web.json_response(POD)


@pytest.mark.parametrize(
    "passing",
    [status(500), status(503), status(429), status(504), status(409, "Conflict", "try again"), cut, sleep],
    ids=["500", "503", "429", "504", "conflict", "cut", "slow"],
)
def test_what_passes_is_tried_again(passing: Any) -> None:
    script = Script(passing, web.json_response(POD))
    clients: list[KubeClient] = []

    async def ask(client: KubeClient) -> Any:
        clients.append(client)
        return await get(client)

    assert play(script, ask) == POD
    assert len(script.asked) == 2, "aiohttp itself repeats a GET whose connection was cut"
    assert clients[0].requests["get", "pods", 200] == 1


def test_a_webhook_may_hold_what_is_made_for_longer() -> None:
    """The API server says which webhook did not answer, but only after the deadline."""
    assert play(Script(sleep), lambda client: client.create(POD, owner=None)) == POD


def test_no_request_is_tried_for_ever() -> None:
    with pytest.raises(BackendError, match="get /api/v1/namespaces/ns/pods/p: tried 4 times: .*503"):
        play(Script(*[status(503, "ServiceUnavailable", "no") for _ in range(4)]), get)


@pytest.mark.parametrize("code", [400, 401, 403, 405, 422])
def test_what_is_refused_is_reported_at_once(code: int) -> None:
    with pytest.raises(ApiRefusalError) as caught:
        play(Script(status(code, "Because", "of this")), get)
    assert caught.value.status == Status(code, "Because", "of this")


def test_answers_of_things_in_between_are_no_riddle() -> None:
    """A proxy's page, a list where an object is expected."""
    pages = [web.Response(status=403, text="<html>no</html>"), web.json_response([1], status=403)]
    for page, words in zip(pages, ("<html>no</html>", r"\[1\]"), strict=True):
        with pytest.raises(ApiRefusalError, match=words):
            play(Script(page), get)


def test_a_list_is_read_page_by_page() -> None:
    def page(name: str, version: str, further: str = "") -> web.Response:
        metadata = {"resourceVersion": version, "continue": further}
        return web.json_response({"metadata": metadata, "items": [{"metadata": {"name": name}}]})

    script = Script(page("a", "7", "next"), page("b", "7"))
    found = play(script, lambda client: client.list(resources.PODS, None, labels="x=y", fields="f!=g"))
    assert ([item["metadata"]["name"] for item in found.items], found.version) == (["a", "b"], 7)
    assert [query for _, _, query, _ in script.asked] == [
        {"limit": str(PAGE), "labelSelector": "x=y", "fieldSelector": "f!=g"},
        {"limit": str(PAGE), "labelSelector": "x=y", "fieldSelector": "f!=g", "continue": "next"},
    ]


def test_of_a_list_only_what_is_wanted_is_kept() -> None:
    """All pods of a large cluster would take half a gigabyte."""
    items = [{"metadata": {"name": name}, "spec": "x" * 1000} for name in "ab"]
    script = Script(web.json_response({"metadata": {"resourceVersion": "7"}, "items": items}))
    seen: list[Any] = []

    def keep(raw: Any) -> Any:
        seen.append(raw)
        return raw["metadata"]

    found = play(script, lambda client: client.list(resources.PODS, "ns", keep=keep))
    assert (found.items, found.version, seen) == ([{"name": "a"}, {"name": "b"}], 7, items)


def test_nothing_is_written_without_the_lease() -> None:
    """Nor tried again once it is lost."""
    held = [True, False]
    script = Script(status(503, "ServiceUnavailable"), web.json_response(POD))

    async def delete_and_get(client: KubeClient) -> Any:
        with pytest.raises(BackendError, match="no longer holds the lease"):
            await client.delete(resources.PODS, "ns", "p", "uid-1")
        return await get(client)

    assert play(script, delete_and_get, lambda: held.pop(0)) == POD
    assert [method for method, *_ in script.asked] == ["DELETE", "GET"]


def test_a_page_of_a_proxy_is_an_error_of_the_backend() -> None:
    with pytest.raises(BackendError, match="the answer cannot be read"):
        play(Script(web.Response(text="<html>welcome</html>")), get)


@pytest.mark.parametrize("answer", [{}, {"metadata": {}}, {"metadata": {"resourceVersion": "x"}}, [], None])
def test_an_answer_that_is_no_list_is_an_error_of_the_backend(answer: Any) -> None:
    """As of an API server that stops; nothing is concluded from it."""
    with pytest.raises(BackendError, match="list /api/v1/namespaces/ns/pods: the answer is not a list"):
        play(Script(web.json_response(answer)), lambda client: client.list(resources.PODS, "ns"))


def test_a_list_whose_version_expires_is_read_in_one_answer() -> None:
    first = web.json_response({"metadata": {"resourceVersion": "7", "continue": "next"}, "items": []})
    whole = web.json_response({"metadata": {"resourceVersion": "9"}, "items": []})
    script = Script(first, status(410, "Expired"), whole)
    found = play(script, lambda client: client.list(resources.PODS, None))
    assert found.version == 9
    assert script.asked[-1][2] == {}
    with pytest.raises(ApiRefusalError, match="410"):
        play(Script(*[status(410, "Expired") for _ in range(2)]), lambda client: client.list(resources.PODS, None))


def owned(uid: str) -> web.Response:
    owners = [{"uid": uid, "controller": True}]
    return web.json_response({**POD, "metadata": {**POD["metadata"], "ownerReferences": owners}})


def test_what_is_made_twice_is_made_once() -> None:
    """The first answer may have been lost."""
    exists = status(409, "AlreadyExists", 'pods "p" already exists')
    script = Script(cut, exists, owned("mine"))
    found = play(script, lambda client: client.create(POD, owner="mine"))
    assert found["metadata"]["ownerReferences"][0]["uid"] == "mine"
    assert [method for method, *_ in script.asked] == ["POST", "POST", "GET"]


def test_an_object_of_somebody_else_is_not_taken_for_ours() -> None:
    script = Script(status(409, "AlreadyExists"), owned("theirs"))
    with pytest.raises(NotOwnedError, match="Pod 'p' exists already and is not this job's; delete it"):
        play(script, lambda client: client.create(POD, owner="mine"))
    found = play(Script(status(409, "AlreadyExists")), lambda client: client.create(POD, owner=None))
    assert found is None, "where nobody asks whose it is, it is there"


@pytest.mark.parametrize(
    "gone",
    [status(404, "NotFound"), status(409, "Conflict", "Precondition failed: UID in precondition: a, UID in ...: b")],
)
def test_what_is_gone_already_is_success(gone: web.Response) -> None:
    """Gone, or another object of that name."""
    script = Script(gone)
    play(script, lambda client: client.delete(resources.PODS, "ns", "p", "uid-1"))
    ((method, path, _, body),) = script.asked
    assert (method, path, body["preconditions"]) == ("DELETE", "/api/v1/namespaces/ns/pods/p", {"uid": "uid-1"})


def test_a_patch_is_for_one_object_and_nobody_s_namesake() -> None:
    answer = web.json_response(POD)
    script = Script(answer)
    do = lambda client: client.patch(resources.PODS, "ns", "p", "uid-1", {"spec": {"x": 1}})  # noqa: E731
    found = play(script, do)
    assert found == POD
    ((method, path, _, body),) = script.asked
    assert (method, path) == ("PATCH", "/api/v1/namespaces/ns/pods/p")
    assert body == {"spec": {"x": 1}, "metadata": {"uid": "uid-1"}}
    other = status(409, "Conflict", "Precondition failed: UID in precondition: uid-1, UID in object meta: uid-2")
    assert play(Script(other), do) is None


def test_a_status_is_for_one_object_and_nobody_s_namesake() -> None:
    """What a real API server says of a namesake, a test with one says."""
    script = Script(web.json_response(POD))
    do = lambda client: client.put_status(resources.JOBS, "ns", "j", "uid-1", "7", {"phase": "x"})  # noqa: E731
    assert play(script, do) == POD
    ((method, path, _, body),) = script.asked
    assert (method, path) == ("PATCH", "/apis/espalier.dev/v1alpha1/namespaces/ns/adaptivetrainingjobs/j/status")
    assert body == [
        {"op": "test", "path": "/metadata/uid", "value": "uid-1"},
        {"op": "test", "path": "/metadata/resourceVersion", "value": "7"},
        {"op": "add", "path": "/status", "value": {"phase": "x"}},
    ]
    invalid = status(422, "Invalid", 'AdaptiveTrainingJob.espalier.dev "j" is invalid: status.phase: Unsupported value')
    with pytest.raises(ApiRefusalError, match="Unsupported value"):
        play(Script(invalid), do)
