"""An event loop whose time passes at once: it jumps to the next timer instead of waiting for it."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Jumping(selectors.SelectSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout is None:
            raise RuntimeError("nothing would ever happen any more")
        if not ready:
            self.now += timeout or 0.0
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """Its `time()` is virtual seconds since its start."""

    def __init__(self) -> None:
        """Start at zero."""
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Return the virtual seconds."""
        return self._jumping.now


def run(story: Coroutine[Any, Any, T]) -> T:
    """Run `story` to its end in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(story)
