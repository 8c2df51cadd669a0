"""Flushes jobs: many in parallel, each job at most once at a time, urgent ones first."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

logger = logging.getLogger(__name__)

PARALLEL: Final = 16
"""Maximum number of jobs flushed at once."""
PATIENT: Final = 2
"""Maximum number of non-urgent ones among these, so that urgent ones find a free place."""
YIELD_SECONDS: Final = 5.0
"""Maximum wait of a non-urgent job while urgent ones are flushed, so that these find an idle API server."""


class WorkQueue:
    """Calls `flush(key)` for each key added since its last call."""

    def __init__(self, flush: Callable[[str], Awaitable[None]], parallel: int = PARALLEL) -> None:
        """Take `flush`, which reports its own failures; an exception from it is a bug, and is logged with the key."""
        self._flush, self._parallel = flush, parallel
        self._urgent: dict[str, None] = {}
        self._rest: dict[str, float] = {}
        """Non-urgent keys, with the time since which they wait."""
        self._again: dict[str, bool] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._patient: set[str] = set()
        """Non-urgent keys that are being flushed."""

    def add(self, key: str, *, urgent: bool) -> None:
        """Queue `key`; if it is being flushed, it is flushed once more afterwards."""
        if key in self._tasks:
            self._again[key] = urgent or self._again.get(key, False)
        elif urgent:
            self._rest.pop(key, None)
            self._urgent[key] = None
        elif key not in self._urgent:
            self._rest.setdefault(key, asyncio.get_running_loop().time())
        self._start()

    def is_busy(self, key: str) -> bool:
        """Return whether `key` is being flushed."""
        return key in self._tasks

    def is_idle(self) -> bool:
        """Return whether nothing is being flushed or queued."""
        return not (self._tasks or self._urgent or self._rest)

    async def close(self, seconds: float) -> None:
        """Flush all queued keys for at most `seconds`, then cancel the rest."""
        until = asyncio.get_running_loop().time() + seconds
        while self._tasks and (left := until - asyncio.get_running_loop().time()) > 0:
            await asyncio.wait(self._tasks.values(), timeout=left, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.sleep(0)  # lets keys added meanwhile start
        self._urgent.clear()
        self._rest.clear()
        self._again.clear()
        left_over = list(self._tasks.values())
        for task in left_over:
            task.cancel()
        await asyncio.gather(*left_over, return_exceptions=True)

    def _start(self) -> None:
        while len(self._tasks) < self._parallel:
            if self._urgent:
                key = next(iter(self._urgent))
                del self._urgent[key]
            elif self._rest and self._has_time():
                key = next(iter(self._rest))
                del self._rest[key]
                self._patient.add(key)
            else:
                return
            task = asyncio.create_task(self._run(key), name=f"flush {key}")
            self._tasks[key] = task

    def _has_time(self) -> bool:
        """Return whether the first non-urgent key may begin."""
        if len(self._patient) >= min(PATIENT, self._parallel):
            return False
        urgent_ones = len(self._tasks) - len(self._patient)
        waited = asyncio.get_running_loop().time() - next(iter(self._rest.values()))
        return not urgent_ones or waited >= YIELD_SECONDS

    async def _run(self, key: str) -> None:
        try:
            await self._flush(key)
        except Exception:
            logger.exception("flushing %s failed with an unexpected error; other jobs continue", key)
        finally:
            del self._tasks[key]
            self._patient.discard(key)
            if (urgent := self._again.pop(key, None)) is not None:
                self.add(key, urgent=urgent)
            else:
                self._start()
