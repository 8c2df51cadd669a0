"""What the operator lists again, what it asks about, and what it says of kinds that it may not read."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from typing import Any, cast

import pytest
from kubernetes.aio.client.configuration import Configuration

import virtual_time
from espalier_core.k8s import resources
from espalier_core.k8s.errors import Status
from espalier_core.k8s.resources import Listing, Resource
from espalier_operator.clock import WallClock
from espalier_operator.kube.apply.steps import DeletePod
from espalier_operator.kube.apply.writer import JobWriter
from espalier_operator.kube.client import ApiRefusalError
from espalier_operator.kube.objects.pods import parse_pod
from espalier_operator.kube.settings import KubeSettings
from espalier_operator.kube.watch.informer import Informer
from espalier_operator.kube.watch.store import Store
from operator_world.kube_known import Known
from operator_world.kube_objects import EPOCH, Raw, at, kube_job, raw_job, raw_worker, terminated

KIND = resources.QUEUES
QUEUE = {"metadata": {"name": "team", "uid": "u", "resourceVersion": "3"}, "spec": {}}
FORBIDDEN = Status(403, "Forbidden", "not yours")


class LoopClock:
    """The time of the event loop."""

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def wall_seconds(self, seconds: float) -> float:
        return seconds


def informer_of(client: Any, store: Store | None = None, doubt: asyncio.Event | None = None) -> Informer:
    settings = KubeSettings()
    given = store or Store(settings), settings, LoopClock(), lambda: None, doubt or asyncio.Event()
    return Informer(client, Configuration(), *given)


async def test_a_list_that_is_asked_for_during_a_list_is_made_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A watch that has just begun again may have missed what the list that is under way has not seen either."""
    watching, lists, done = informer_of(None), [], asyncio.Event()

    async def list_patiently() -> None:
        lists.append(1)
        if len(lists) == 1:
            watching._relist.set()
        else:
            done.set()

    monkeypatch.setattr(watching, "_list_patiently", list_patiently)
    watching._relist.set()
    regular = asyncio.create_task(watching._list_regularly())
    async with asyncio.timeout(60):  # the next regular one is due after minutes
        await done.wait()
    regular.cancel()


# ---- kinds that may not be read


class Server:
    """Answers lists of one kind with a refusal while it has one."""

    def __init__(self) -> None:
        self.refusal: Status | None = FORBIDDEN
        self.lists = 0

    async def list(self, resource: Resource, namespace: str | None, **_: Any) -> Listing:
        self.lists += 1
        if self.refusal is not None:
            raise ApiRefusalError(f"list {resource.plural}", self.refusal)
        return Listing([QUEUE], 7)

    async def serves(self, resource: Resource) -> bool:
        return True


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.levelno >= logging.WARNING]


async def test_a_kind_that_cannot_be_read_is_named_once_until_the_answer_changes_and_what_was_read_counts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server, store = Server(), Store(KubeSettings())
    informer = informer_of(server, store)
    for refusal in (FORBIDDEN, FORBIDDEN, Status(404, "NotFound", "no such kind"), None, None, FORBIDDEN):
        server.refusal = refusal
        await informer._list_optional(KIND, ())
    assert server.lists == 6
    assert [*store.queue_objects.mapping()] == ["team"]
    first, second, third = said(caplog)
    assert first.startswith("queues cannot be read and do not count; ")
    assert "403 Forbidden: not yours" in first
    assert "404 NotFound" in second
    assert third.startswith("queues cannot be read and count as last read (1); ")


def test_its_watch_says_nothing_while_it_waits_for_the_list(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        informer = informer_of(Server())
        await informer._list_optional(KIND, ())
        watch = asyncio.create_task(informer._follow((KIND,), ()))
        await asyncio.sleep(600)
        watch.cancel()

    virtual_time.run(story())
    assert len(said(caplog)) == 1


# ---- pods that are gone, or may be


async def test_ends_that_nobody_saw_are_asked_for_as_far_back_as_the_api_server_knows() -> None:
    """From the last version of a running job on; later ones where that is too long ago."""
    job, pod = raw_job(), raw_worker(kube_job(), phase="Succeeded", state=terminated(0))
    asked: list[int] = []

    class Client:
        async def changes(self, _: object, since: int, **__: object) -> list[Any]:
            asked.append(since)
            if since < 30:
                raise ApiRefusalError("watch", Status(410, "Expired", "too old"))
            return [{"type": "ADDED", "object": at(51, pod)}, {"type": "DELETED", "object": at(52, pod)}]

    store = Store(KubeSettings())
    for number, version in enumerate((10, 20, 30, 40, 50)):
        metadata = job["metadata"] | ({} if number == 4 else {"name": f"job-{number}", "uid": f"uid-of-{number}"})
        status = {"scheduling": {"admittedAt": "2027-01-15T08:00:00Z"}}
        status |= {"completionTime": "2027-01-15T08:00:00Z"} if number == 3 else {}
        store.take(resources.JOBS, None, at(version, {**job, "metadata": metadata, "status": status}))
    await informer_of(Client(), store)._hear_of_ends()
    assert asked == [10, 30]
    (left,) = store.pods_of(kube_job().ref)
    assert (left.gone, left.exit_code, left.ended_first) == (True, 0, True)


class Answers:
    """An API server that says of each pod that it is gone, once it is let."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.gates: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Raw | None:
        self.asked.append(name)
        await self.gates[name].wait()
        return None


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_an_answer_that_does_not_come_delays_no_other() -> None:
    doubt, answers = asyncio.Event(), Answers()
    known = Known(doubted=doubt.set)
    looking = asyncio.create_task(informer_of(answers, known.store, doubt)._look_at_doubtful())
    pods = [known.take(resources.PODS, raw_worker(kube_job(), index=number)) for number in range(3)]
    names = [pod["metadata"]["name"] for pod in pods]
    for pod in pods[:2]:
        known.take(resources.PODS, pod, "DELETED")
        await settle()
    assert answers.asked == names[:2]
    answers.gates[names[1]].set()
    await settle()
    assert {*known.store.doubtful} == {f"ns/{names[0]}"}
    known.take(resources.PODS, pods[2], "DELETED")
    answers.gates[names[0]].set()
    answers.gates[names[2]].set()
    await settle()
    assert (answers.asked, known.store.doubtful) == (names, {}), "each is asked about once"
    looking.cancel()
    await asyncio.gather(looking, return_exceptions=True)


@pytest.mark.parametrize("versioned", [True, False])
async def test_a_pod_that_is_gone_at_once_may_be_answered_without_a_version(versioned: bool) -> None:
    raw = {**raw_worker(kube_job()), "kind": "Pod"}
    answer = {**at(7, raw_worker(kube_job(), deleted_at=EPOCH)), "kind": "Pod"}
    if not versioned:
        del answer["metadata"]["resourceVersion"]

    class Client:
        async def delete(self, *_: Any) -> Any:
            return answer

    store, pod = Store(KubeSettings()), parse_pod(raw, KubeSettings())
    store.take(resources.PODS, "ADDED", raw)
    writer = JobWriter(cast("Any", Client()), store, KubeSettings(), WallClock(), cast("Any", None))
    await writer._delete(DeletePod(pod=pod))
    kept = store.pods.get(pod.key)
    assert kept is not None, "the watch tells when it is gone"
    assert kept.pod.deleting == versioned
