"""When Python searches for garbage in the operator: while nothing waits for it.

A search stops the event loop. With 1,000 jobs one of everything takes a third of a second of CPU time, and Python
begins it at any moment. What a search has left over is not searched by the next ones, so they are short.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Final

_NEVER: Final = 2**31 - 1


class GarbageSearch:
    """Searches the whole heap instead of Python, which goes on to search among young objects."""

    def __init__(
        self,
        is_idle: Callable[[], bool],
        *,
        every: float = 60.0,
        patience: float = 240.0,
        everything_every: float = 3600.0,
        look: float = 0.05,
    ) -> None:
        """Search each `every` seconds, once `is_idle` is true or after `patience` more, looking each `look` seconds.

        Objects that were there at the last search are left out, except once in `everything_every` seconds.
        """
        self._is_idle, self._every, self._patience = is_idle, every, patience
        self._everything_every, self._look = everything_every, look

    async def run(self) -> None:
        """Search until cancelled. Then Python searches as before."""
        loop, thresholds = asyncio.get_running_loop(), gc.get_threshold()
        young, middle, _ = thresholds
        try:
            gc.set_threshold(young, middle, _NEVER)
            _search()
            everything_at = loop.time() + self._everything_every
            while True:
                await asyncio.sleep(self._every)
                until = loop.time() + self._patience
                while not self._is_idle() and loop.time() < until:  # noqa: ASYNC110 - nothing tells of it
                    await asyncio.sleep(self._look)
                if loop.time() >= everything_at:
                    gc.unfreeze()
                    everything_at = loop.time() + self._everything_every
                _search()
        finally:
            gc.unfreeze()
            gc.set_threshold(*thresholds)


def _search() -> None:
    gc.collect()
    gc.freeze()
