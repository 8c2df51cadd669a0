"""What a piece of code has begun ends with it, and nothing else does."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from espalier_operator.kube.watch import handlers
from espalier_operator.kube.watch.handlers import end, recorded_tasks


def test_everything_that_was_begun_inside_ends_and_nothing_else() -> None:
    async def wait() -> None:
        await asyncio.Event().wait()

    async def beget(depth: int) -> None:
        if depth:
            asyncio.create_task(beget(depth - 1), name=f"child {depth}")  # noqa: RUF006
        await wait()

    async def stubborn() -> None:
        try:
            await wait()
        except asyncio.CancelledError:
            asyncio.create_task(wait(), name="begun at the end")  # noqa: RUF006
            raise

    async def run() -> None:
        before = asyncio.create_task(wait())
        with recorded_tasks() as begun:
            tasks = {asyncio.create_task(beget(3)), asyncio.create_task(stubborn())}
            for _ in range(10):  # turns of the loop, not seconds: a slow machine takes as many
                await asyncio.sleep(0)
            assert len(begun) == 5
            await end(begun)
        after = asyncio.create_task(wait())
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {before, after, asyncio.current_task()}
        assert all(task.cancelled() for task in tasks)
        before.cancel()
        after.cancel()

    asyncio.run(run())


def test_a_task_that_takes_a_cancellation_for_its_own_is_cancelled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers, "CANCEL_AGAIN_SECONDS", 0.01)

    async def swallow() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await asyncio.Event().wait()

    async def run() -> None:
        task = asyncio.create_task(swallow())
        await asyncio.sleep(0)
        async with asyncio.timeout(60):
            await end([task])
        assert task.cancelled()

    asyncio.run(run())


def test_who_ends_others_and_is_cancelled_still_ends_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else they would be cancelled only once more, as the loop ends: too little, and it would wait for ever."""
    monkeypatch.setattr(handlers, "CANCEL_AGAIN_SECONDS", 0.01)

    async def swallow() -> None:
        for _ in range(3):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
        await asyncio.Event().wait()

    async def run() -> None:
        task = asyncio.create_task(swallow())
        await asyncio.sleep(0)
        ender = asyncio.create_task(end([task]))
        await asyncio.sleep(0)
        ender.cancel()
        async with asyncio.timeout(60):
            await asyncio.wait([ender])
        assert ender.cancelled()
        assert task.cancelled()

    asyncio.run(run())
