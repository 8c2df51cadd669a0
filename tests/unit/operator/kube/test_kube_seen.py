"""What the operator does not see: objects that are gone, in doubt, or of kinds that cannot be read."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from typing import Any, cast

import pytest
from kubernetes.aio.client.configuration import Configuration

from espalier_core.k8s import resources
from espalier_core.k8s.errors import Status
from espalier_core.k8s.resources import Listing, Raw, Resource
from espalier_operator.clock import WallClock
from espalier_operator.kube.apply.steps import DeletePod
from espalier_operator.kube.apply.writer import JobWriter
from espalier_operator.kube.client import ApiRefusalError, KubeClient
from espalier_operator.kube.objects.jobs import KubeJob, parse_job
from espalier_operator.kube.objects.pods import parse_pod
from espalier_operator.kube.settings import KubeSettings
from espalier_operator.kube.watch.informer import Informer
from espalier_operator.kube.watch.store import Store
from operator_world.kube_objects import kube_job, raw_job, raw_worker, template
from virtual_time import run

KIND = resources.QUEUES


class Server:
    """Answers lists of one kind with a refusal while it has one."""

    def __init__(self) -> None:
        self.refusal: Status | None = Status(403, "Forbidden", "not yours")
        self.lists = 0

    async def list(self, resource: resources.Resource, namespace: str | None, **_: Any) -> Listing:
        self.lists += 1
        if self.refusal is not None:
            raise ApiRefusalError(f"list {resource.plural}", self.refusal)
        return Listing([], 1)

    async def serves(self, resource: resources.Resource) -> bool:
        return True


class Clock:
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def wall_seconds(self, seconds: float) -> float:
        return seconds


def informer_of(server: Any) -> Informer:
    settings = KubeSettings()
    configuration: Any = None
    return Informer(server, configuration, Store(settings), settings, Clock(), lambda: None, asyncio.Event())


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_kind_that_cannot_be_read_is_named_once_until_the_answer_changes(caplog: pytest.LogCaptureFixture) -> None:
    server = Server()

    async def story() -> None:
        informer = informer_of(server)
        for refusal in (server.refusal, server.refusal, Status(404, "NotFound", "no such kind"), None, None):
            server.refusal = refusal
            await informer._list_optional(KIND, ())
        assert len(said(caplog)) == 2
        server.refusal = Status(403, "Forbidden", "not yours")
        await informer._list_optional(KIND, ())

    run(story())
    assert server.lists == 6
    first, second, third = said(caplog)
    assert first == third
    assert "queues cannot be read and do not count" in first
    assert "403 Forbidden: not yours" in first
    assert "404 NotFound" in second


def test_its_watch_says_nothing_while_it_waits_for_the_list(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        informer = informer_of(Server())
        await informer._list_optional(KIND, ())
        watch = asyncio.create_task(informer._follow((KIND,), ()))
        await asyncio.sleep(600)
        watch.cancel()

    run(story())
    assert len(said(caplog)) == 1


SETTINGS = KubeSettings()


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


def test_an_answer_that_does_not_come_delays_no_other() -> None:
    async def run() -> None:
        doubt, answers = asyncio.Event(), Answers()
        store = Store(SETTINGS, doubted=doubt.set)
        client = cast(KubeClient, answers)
        informer = Informer(client, Configuration(), store, SETTINGS, WallClock(), lambda: None, doubt)
        looking = asyncio.create_task(informer._look_at_doubtful())
        pods: list[dict[str, Any]] = []
        for number in range(3):
            pod = raw_worker(kube_job(), index=number)
            pods.append({**pod, "metadata": {**pod["metadata"], "resourceVersion": str(number + 1)}})
            store.take(resources.PODS, "ADDED", pods[-1])
        names = [pod["metadata"]["name"] for pod in pods]
        for pod in pods[:2]:
            store.take(resources.PODS, "DELETED", pod)
            await settle()
        assert answers.asked == names[:2]
        answers.gates[names[1]].set()
        await settle()
        assert {*store.doubtful} == {f"ns/{names[0]}"}
        store.take(resources.PODS, "DELETED", pods[2])
        answers.gates[names[0]].set()
        answers.gates[names[2]].set()
        await settle()
        assert (answers.asked, store.doubtful) == (names, {}), "each is asked about once"
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)

    asyncio.run(run())


@pytest.mark.parametrize("versioned", [True, False])
def test_a_pod_that_is_gone_at_once_may_be_answered_without_a_version(versioned: bool) -> None:
    job = parse_job(raw_job(spec={"template": template()}), SETTINGS)
    assert isinstance(job, KubeJob)
    raw = {**raw_worker(job), "kind": "Pod"}
    answer = {
        **raw,
        "metadata": {**raw["metadata"], "resourceVersion": "7", "deletionTimestamp": "2026-01-01T00:00:00Z"},
    }
    if not versioned:
        del answer["metadata"]["resourceVersion"]

    class Client:
        async def delete(self, *_: Any) -> Any:
            return answer

    store = Store(SETTINGS)
    store.take(resources.PODS, "ADDED", raw)
    pod = parse_pod(raw, SETTINGS)
    writer = JobWriter(cast("Any", Client()), store, SETTINGS, WallClock(), cast("Any", None))
    asyncio.run(writer._delete(DeletePod(pod=pod)))
    kept = store.pods.get(pod.key)
    assert kept is not None, "the watch tells when it is gone"
    assert kept.pod.deleting == versioned
