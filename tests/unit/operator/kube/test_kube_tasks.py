"""What a piece of code has begun ends with it, and nothing else does."""

from __future__ import annotations

import asyncio

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
