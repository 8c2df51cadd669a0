"""The API server as the benchmark talks to it: requests in great number, and watches whose events carry their time."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import aiohttp

from bench.command import BenchError

Raw = dict[str, Any]
T = TypeVar("T")

AT_ONCE: Final = 32
"""Requests under way at a time, where many are to be made."""
_REQUEST_SECONDS: Final = 60.0
_WATCH_SECONDS: Final = 3600
_MEDIA: Final = {"PATCH": "application/merge-patch+json"}


class ApiError(BenchError):
    """The API server refused something, or ended a watch. The benchmark cannot continue."""

    def __init__(self, message: str, code: int = 0) -> None:
        """Keep the HTTP status, 0 where a watch ended."""
        super().__init__(message)
        self.code = code


class Api:
    """A client; made by `connect`."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        """Take over the session."""
        self._session = session
        self.ended_watches = 0
        """How often the server has ended a watch."""

    async def request(self, method: str, path: str, body: Any = None, **parameters: str) -> Any:
        """Do one request and return the answer's JSON. `ApiError` where it is refused: nothing is tried twice."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": _MEDIA.get(method, "application/json")}
        timeout = aiohttp.ClientTimeout(total=_REQUEST_SECONDS)
        async with self._session.request(
            method, path, data=data, params=parameters, headers=headers, timeout=timeout
        ) as answer:
            text = await answer.read()
            if answer.status >= 300:
                raise ApiError(f"{method} {path}: {answer.status} {_message(text)}", answer.status)
            return json.loads(text)

    async def list(self, path: str, **parameters: str) -> tuple[list[Raw], str]:
        """Return all objects at `path`, and the version as of which they are all."""
        items: list[Raw] = []
        query = {**parameters, "limit": "1000"}
        while True:
            page = await self.request("GET", path, **query)
            items += page["items"] or []
            if not (more := page["metadata"].get("continue")):
                return items, str(page["metadata"]["resourceVersion"])
            query["continue"] = more

    async def watch(
        self, path: str, version: str, begun: Callable[[], None] = lambda: None, **parameters: str
    ) -> AsyncIterator[tuple[float, str, Raw]]:
        """Yield each event after `version` for ever: monotonic seconds at which it came, type, object.

        A watch that the server ends (it does so to clients that are slow) continues where it was, and is counted.
        `begun` is called when the server has agreed to the first. `ApiError` where events were lost.
        """
        query = {**parameters, "watch": "1", "allowWatchBookmarks": "true", "timeoutSeconds": str(_WATCH_SECONDS)}
        while True:
            async for came, event in self._events(path, {**query, "resourceVersion": version}, begun):
                if event["type"] == "ERROR":
                    raise ApiError(f"watch {path}: {event['object'].get('message')}")
                version = event["object"]["metadata"]["resourceVersion"]
                if event["type"] != "BOOKMARK":
                    yield came, event["type"], event["object"]
            self.ended_watches += 1

    async def _events(
        self, path: str, query: dict[str, str], begun: Callable[[], None]
    ) -> AsyncIterator[tuple[float, Raw]]:
        """Yield the events of one watch, with the time at which each came, until the server ends it."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_REQUEST_SECONDS)
        async with self._session.get(path, params=query, timeout=timeout) as answer:
            if answer.status != 200:
                raise ApiError(f"watch {path}: {answer.status} {_message(await answer.read())}", answer.status)
            begun()
            rest = b""
            with contextlib.suppress(aiohttp.ClientPayloadError):  # ended in the middle of an event
                async for part in answer.content.iter_any():
                    came = time.monotonic()
                    *lines, rest = (rest + part).split(b"\n")
                    for line in lines:
                        yield came, json.loads(line)

    async def follow(self, path: str, **parameters: str) -> AsyncIterator[tuple[float, str, Raw]]:
        """Yield what is there as ADDED, then LISTED with an empty object, then all changes, as `watch`."""
        items, version = await self.list(path, **parameters)
        for item in items:
            yield time.monotonic(), "ADDED", item
        yield time.monotonic(), "LISTED", {}
        async for event in self.watch(path, version, lambda: None, **parameters):
            yield event


@dataclass(frozen=True, slots=True)
class Access:
    """How to reach an API server."""

    url: str
    context: ssl.SSLContext
    token: str

    @classmethod
    def of(cls, kubeconfig: Path) -> Access:
        """Read a kubeconfig in JSON with a token, as the tests' `ApiServer` writes it."""
        config = json.loads(kubeconfig.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        context = ssl.create_default_context(cafile=cluster["certificate-authority"])
        return cls(cluster["server"], context, user["token"])


@asynccontextmanager
async def connect(access: Access) -> AsyncIterator[Api]:
    """Give a client."""
    connector = aiohttp.TCPConnector(ssl=access.context, limit=0)
    headers = {"Authorization": f"Bearer {access.token}", "Accept": "application/json"}
    async with aiohttp.ClientSession(access.url, connector=connector, headers=headers) as session:
        yield Api(session)


async def for_all(things: Iterable[T], do: Callable[[T], Awaitable[Any]], at_once: int = AT_ONCE) -> None:
    """Do it to each, some at a time; ends at the first error."""
    waiting = iter(things)

    async def work() -> None:
        for thing in waiting:
            await do(thing)

    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(work())


def _message(text: bytes) -> str:
    try:
        return str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        return text[:300].decode(errors="replace")
