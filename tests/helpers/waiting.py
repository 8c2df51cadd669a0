"""Waits for what other threads and processes do. An event is awaited; the limit only ends a test that has failed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE = 120.0
"""Seconds for what takes a few on a machine that does nothing else. pytest ends a test after 300 s."""


_OFTEN = 0.02


def until(
    holds: Callable[[], T | None],
    report: Callable[[], str] | str = "",
    seconds: float = PATIENCE,
    longest: float = _OFTEN,
) -> T:
    """Return the first true value of `holds`; `AssertionError` with `report` when there is none in time.

    Asked often at first, and every `longest` seconds later: a question may be a request, and keeps others waiting.
    """
    end, pause = time.monotonic() + seconds, _OFTEN
    while not (found := holds()):
        if time.monotonic() > end:
            raise AssertionError(f"not true after {seconds:g} s: {report if isinstance(report, str) else report()}")
        time.sleep(pause)
        pause = min(1.2 * pause, longest)
    return found
