"""Watches, read as they come; and what is left of connections when asyncio code has ended, or was cancelled."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import httpx

_CLOSING_SECONDS = 10.0


async def json_lines(answer: httpx.Response) -> AsyncIterator[Any]:
    """Give what each line of a streamed answer says.

    Not by `aiter_lines`, which takes U+0085 and others for the end of a line: they may stand in a name.
    """
    rest = b""
    async for chunk in answer.aiter_bytes():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield json.loads(line)


_sessions: dict[asyncio.AbstractEventLoop, list[aiohttp.ClientSession]] = {}
_make_session = aiohttp.ClientSession.__init__


def _make_recorded(session: aiohttp.ClientSession, *arguments: Any, **options: Any) -> None:
    _make_session(session, *arguments, **options)
    _sessions.setdefault(asyncio.get_running_loop(), []).append(session)


# kopf leaves its session open where it is cancelled as it logs in; garbage collection would warn in another test.
aiohttp.ClientSession.__init__ = _make_recorded  # type: ignore[method-assign]


async def connections_closed() -> None:
    """Return when the running event loop watches no socket but its own: TLS says goodbye before it closes."""
    for session in _sessions.pop(asyncio.get_running_loop(), ()):
        await session.close()
    deadline = time.monotonic() + _CLOSING_SECONDS
    watched = asyncio.get_running_loop()._selector.get_map()  # type: ignore[attr-defined]  # asyncio has no public word
    while len(watched) > 1 and time.monotonic() < deadline:  # noqa: ASYNC110  # nobody tells
        await asyncio.sleep(0.01)


@asynccontextmanager
async def connections_aborted() -> AsyncIterator[None]:
    """Abort all connections of the running event loop at the end, when the loop is about to end as well.

    httpcore closes its own, but forgets one whose TLS handshake was cancelled: its socket would be left open. They are
    kept meanwhile: otherwise the garbage collection may come across one first, and warn.
    """
    transports: dict[int, asyncio.Transport] = {}
    asyncio.get_running_loop()._transports = transports  # type: ignore[attr-defined]  # asyncio has no public word for it
    try:
        yield
    finally:
        for transport in transports.values():
            transport.abort()
        # What abort leaves to do, it asks for soon.
        await asyncio.sleep(0)
