"""What the operator lists again, and what it says of kinds that it may not read."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, cast

import pytest

from espalier_core.k8s import resources
from espalier_core.k8s.errors import Status
from espalier_operator.clock import WallClock
from espalier_operator.kube.client import ApiRefusalError, Listing
from espalier_operator.kube.settings import KubeSettings
from espalier_operator.kube.watch.informer import Informer
from espalier_operator.kube.watch.store import Store
from operator_world.kube_objects import kube_job, raw_job, raw_worker, terminated


def informer(client: object, store: Store) -> Informer:
    unused = cast("Any", None)
    return Informer(cast("Any", client), unused, store, KubeSettings(), WallClock(), lambda: None, asyncio.Event())


def test_a_list_that_is_asked_for_during_a_list_is_made_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A watch that has just begun again may have missed what the list that is under way has not seen either."""

    async def story() -> None:
        watching, lists, done = informer(None, Store(KubeSettings())), 0, asyncio.Event()

        async def list_patiently() -> None:
            nonlocal lists
            lists += 1
            if lists == 1:
                watching._relist.set()
            else:
                done.set()

        monkeypatch.setattr(watching, "_list_patiently", list_patiently)
        watching._relist.set()
        regular = asyncio.create_task(watching._list_regularly())
        async with asyncio.timeout(60):  # the next regular one is due after minutes
            await done.wait()
        regular.cancel()

    asyncio.run(story())


def test_what_was_read_of_a_kind_that_may_not_be_read_any_more_counts(caplog: pytest.LogCaptureFixture) -> None:
    queue = {"metadata": {"name": "team", "uid": "u", "resourceVersion": "3"}, "spec": {}}

    class Client:
        allowed = False

        async def list(self, *_: object) -> Listing:
            if not self.allowed:
                raise ApiRefusalError("list", Status(403, "Forbidden", "no right"))
            return Listing(items=[queue], version=7)

    async def story() -> None:
        client, store = Client(), Store(KubeSettings())
        watching = informer(client, store)
        for allowed in (False, True, False):
            client.allowed = allowed
            await watching._list_optional(resources.QUEUES, ())
        assert [*store.queue_objects.mapping()] == ["team"]

    with caplog.at_level(logging.WARNING):
        asyncio.run(story())
    never, later = (record.getMessage() for record in caplog.records)
    assert never.startswith("queues cannot be read and do not count; ")
    assert later.startswith("queues cannot be read and count as last read (1); ")


def test_ends_that_nobody_saw_are_asked_for_as_far_back_as_the_api_server_knows() -> None:
    """From the last version of a running job on; later ones where that is too long ago."""
    job, pod = raw_job(), raw_worker(kube_job(), phase="Succeeded", state=terminated(0))
    asked: list[int] = []

    class Client:
        async def changes(self, _: object, since: int, **__: object) -> list[Any]:
            asked.append(since)
            if since < 30:
                raise ApiRefusalError("watch", Status(410, "Expired", "too old"))
            return [
                {"type": kind, "object": {**pod, "metadata": {**pod["metadata"], "resourceVersion": version}}}
                for kind, version in (("ADDED", "51"), ("DELETED", "52"))
            ]

    store = Store(KubeSettings())
    for number, version in enumerate((10, 20, 30, 40, 50)):
        metadata = {**job["metadata"], "resourceVersion": str(version)}
        metadata |= {} if number == 4 else {"name": f"job-{number}", "uid": f"uid-of-{number}"}
        status = {"scheduling": {"admittedAt": "2027-01-15T08:00:00Z"}}
        status |= {"completionTime": "2027-01-15T08:00:00Z"} if number == 3 else {}
        store.take(resources.JOBS, None, {**job, "metadata": metadata, "status": status})
    asyncio.run(informer(Client(), store)._hear_of_ends())
    assert asked == [10, 30]
    (left,) = store.pods_of(kube_job().ref)
    assert (left.gone, left.exit_code, left.ended_first) == (True, 0, True)
