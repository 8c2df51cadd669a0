"""Which tasks a piece of code has begun, so that none of them outlives it."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine, Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any
from weakref import WeakSet

_Tasks = WeakSet["asyncio.Task[Any]"]
_RECORD: ContextVar[_Tasks | None] = ContextVar("_RECORD", default=None)


@contextmanager
def recorded_tasks() -> Iterator[Collection[asyncio.Task[Any]]]:
    """Give the set of all tasks that are begun inside, by whatever is begun inside too, while they exist."""
    loop = asyncio.get_running_loop()
    if loop.get_task_factory() is not _record:
        loop.set_task_factory(_record)
    tasks: _Tasks = WeakSet()
    token = _RECORD.set(tasks)
    try:
        yield tasks
    finally:
        _RECORD.reset(token)


async def end(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Cancel those that still run, and those that they begin meanwhile, and wait until they have ended."""
    while left := [task for task in tasks if not task.done()]:
        for task in left:
            task.cancel()
        await asyncio.wait(left)


def _record(
    loop: asyncio.AbstractEventLoop,
    coroutine: Coroutine[Any, Any, Any] | Generator[Any, None, Any],
    **options: Any,
) -> asyncio.Task[Any]:
    task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=loop, **options)
    tasks = _RECORD.get()
    if tasks is not None:
        tasks.add(task)
    return task
