"""A kind that the operator may not read, or that is not served: it is said once, until that changes."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from espalier_core.k8s import resources
from espalier_core.k8s.errors import Status
from espalier_core.k8s.resources import Listing
from espalier_operator.kube.client import ApiRefusalError
from espalier_operator.kube.settings import KubeSettings
from espalier_operator.kube.watch.informer import Informer
from espalier_operator.kube.watch.store import Store
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
